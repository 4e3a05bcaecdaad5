// The API, read from /openapi.json: each route with what it takes and what it answers.

const main = document.getElementById("routes");
const schema = await (await fetch("/openapi.json")).json();

function made(kind, text, ...inside) {
  const element = document.createElement(kind);
  if (text !== null) element.textContent = text;
  element.append(...inside);
  return element;
}

function table(rows) {
  return made("table", null, made("tbody", null, ...rows.map(([name, text]) => {
    const head = made("th", null, made("code", name));
    head.scope = "row";
    return made("tr", null, head, made("td", text));
  })));
}

const typeOf = (field) => field.enum?.join(" or ") ?? field.type ?? field.anyOf?.map(typeOf).filter((each) => each !== "null").join(" or ") ?? "";

for (const [path, methods] of Object.entries(schema.paths)) {
  for (const [method, route] of Object.entries(methods)) {
    const section = made("section", null, made("h2", null, made("code", `${method.toUpperCase()} ${path}`)), made("p", route.summary), made("p", route.description ?? ""));
    for (const [kind, body] of Object.entries(route.requestBody?.content ?? {})) {
      const fields = Object.entries(body.schema?.properties ?? {}).map(([name, field]) => [name, [typeOf(field), field.description].filter(Boolean).join(": ")]);
      section.append(made("h3", kind));
      if (fields.length) section.append(table(fields));
    }
    section.append(made("h3", "Answers"), table(Object.entries(route.responses).map(([status, answer]) => [status, answer.description])));
    main.append(section);
  }
}
main.setAttribute("aria-busy", "false");
