// Renders an asciicast, a recording of `flannel-lab demo`, as a picture: a terminal that scrolls once from the first screen
// to the last one, which it keeps. Where nothing moves, it shows the last one.
//
//   node render.mjs CAST SVG
import { readFileSync, writeFileSync } from 'node:fs';
import svgTerm from 'svg-term';

const [cast, picture] = process.argv.slice(2);
const [header, ...events] = readFileSync(cast, 'utf8').trim().split('\n').map((line) => JSON.parse(line));
const text = events.map(([, , part]) => part).join('').trimEnd();

// The whole text, on a terminal with a row for each line, or for each part of one that is too long.
const plain = text.replace(/\x1b\[[\d;]*m/g, '');
const rows = plain.split('\r\n').reduce((n, line) => n + Math.max(1, Math.ceil([...line].length / header.width)), 0);
const whole = [{ version: 2, width: header.width, height: rows }, [1, 'o', text]].map((part) => JSON.stringify(part)).join('\n');
const svg = svgTerm.render(whole, { at: 1000, cursor: false }).replace(/ ([xy])="(\d+\.\d+)"/g, (_, name, n) => ` ${name}="${+(+n).toFixed(2)}"`);

const [, width, height] = svg.match(/ width="([\d.]+)" height="([\d.]+)"/).map(Number);
const below = Math.max(0, rows - header.height);
const shown = Math.round((height / rows) * (rows - below));
const border = 16;
const [outerWidth, outerHeight] = [width + 2 * border, shown + 2 * border];
const scrolled = Math.round(height - shown);

// The background is that of svg-term. The border is visible on white and on black.
writeFileSync(picture, `<svg xmlns="http://www.w3.org/2000/svg" width="${outerWidth}" height="${outerHeight}" viewBox="0 0 ${outerWidth} ${outerHeight}">
<style>
@media (prefers-reduced-motion: no-preference) { .scroll { animation: scroll ${Math.round(below / 3)}s linear 4s both } }
@keyframes scroll { from { transform: translateY(0) } to { transform: translateY(-${scrolled}px) } }
</style>
<rect x="1" y="1" width="${outerWidth - 2}" height="${outerHeight - 2}" rx="10" fill="rgb(40,45,53)" stroke="rgb(125,133,144)" stroke-width="2"/>
<svg x="${border}" y="${border}" width="${width}" height="${shown}"><g class="scroll" transform="translate(0 -${scrolled})">
${svg}
</g></svg>
</svg>
`);
