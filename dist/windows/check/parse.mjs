// Prints what PowerShell's grammar says of each file, as JSON: its syntax errors, and the words of every command that it
// runs, in order. PowerShell itself does not run where the tests run.
//
//   node parse.mjs FILE...
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { setFlagsFromString } from 'node:v8';
import { Language, Parser } from 'web-tree-sitter';

// The grammar is one large function, whose optimization takes a hundred times what its use takes.
setFlagsFromString('--liftoff-only');
await Parser.init();
const grammar = fileURLToPath(import.meta.resolve('tree-sitter-powershell/package.json')).replace('package.json', 'tree-sitter-powershell.wasm');
const parser = new Parser();
parser.setLanguage(await Language.load(grammar));

const place = (node) => `${node.startPosition.row + 1}:${node.startPosition.column + 1}`;

function* walk(node) {
  yield node;
  for (const child of node.children) yield* walk(child);
}

function look(file) {
  const root = parser.parse(readFileSync(file, 'utf8')).rootNode;
  const broken = root.hasError ? [...walk(root)].filter((n) => n.isError || n.isMissing) : [];
  return {
    file,
    errors: broken.map((n) => `${place(n)}: ${n.isMissing ? `missing ${n.type}` : `near ${JSON.stringify(n.text.slice(0, 60))}`}`),
    functions: root.descendantsOfType('function_name').map((n) => n.text),
    commands: root.descendantsOfType('command').map((n) => ({
      line: n.startPosition.row + 1,
      name: n.childForFieldName('command_name')?.text ?? '',
      text: n.text,
    })),
  };
}

console.log(JSON.stringify(process.argv.slice(2).map(look), null, 1));
