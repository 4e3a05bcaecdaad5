// Opens the built page in Chromium from a plain file server and tags photographs: node drive.mjs FOLDER OUT PHOTO...
// Prints JSON: the scores of each photograph, those with the first class told, and every request that left the server.
// Pictures of the page at desktop and phone width go into the folder OUT.

import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { chromium } from "playwright-core";

const [folder, out, ...photos] = process.argv.slice(2);
const kinds = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".wasm": "application/wasm" };
const server = createServer(async (request, response) => {
  const path = join(folder, normalize(new URL(request.url, "http://localhost").pathname));
  const file = path.endsWith("/") ? join(path, "index.html") : path;
  try {
    await stat(file);
  } catch {
    response.writeHead(404).end();
    return;
  }
  response.writeHead(200, { "Content-Type": kinds[extname(file)] ?? "application/octet-stream" });
  createReadStream(file).pipe(response);
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const home = `http://127.0.0.1:${server.address().port}/`;

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
const elsewhere = [];
const errors = [];
page.on("request", (request) => {
  if (!request.url().startsWith(home) && !/^(blob|data):/.test(request.url())) elsewhere.push(request.url());
});
page.on("pageerror", (error) => errors.push(String(error)));
page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
await page.goto(home);
const patience = { timeout: 120_000 };
await page.waitForSelector("body[data-ready]", patience);
await page.context().setOffline(true); // everything is here now: nothing more is fetched
const scores = [];
for (const photo of photos) {
  await page.evaluate(() => delete document.body.dataset.tagged);
  await page.setInputFiles("#file", photo);
  await page.waitForSelector("body[data-tagged]", patience);
  scores.push(JSON.parse(await page.evaluate(() => document.body.dataset.scores)));
}
await page.screenshot({ path: join(out, "desktop.png"), fullPage: true });
const first = page.locator("#tags li, #below li").first();
const told = await first.locator(".name").textContent();
await first.locator("button.answer").first().click();
await page.waitForSelector("body[data-tagged]", patience);
const toldScores = JSON.parse(await page.evaluate(() => document.body.dataset.scores));
await page.setViewportSize({ width: 390, height: 844 });
await page.screenshot({ path: join(out, "phone.png"), fullPage: true });
console.log(JSON.stringify({ scores, told, toldScores, elsewhere, errors }));
await browser.close();
server.close();
