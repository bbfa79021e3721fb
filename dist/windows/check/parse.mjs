// Prints what PowerShell's grammar says of each file, as JSON: its syntax errors, the words of every command, in order, and
// the script as a tree of which package check has the types. PowerShell itself does not run where the tests run.
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

const ignored = new Set(['comment', 'command_argument_sep', 'empty_statement', 'command_invokation_operator', 'attribute_list']);
const parts = (n) => n.namedChildren.filter((c) => !ignored.has(c.type));
const node = (kind, n, kids, text = '') => ({ kind, line: n.startPosition.row + 1, text, kids });
const within = (n, ...types) => n.children.filter((c) => types.includes(c.type));
const unescaped = (s) => s.replace(/`(.)/gs, (_, c) => ({ n: '\n', r: '\r', t: '\t', '\n': '' })[c] ?? c);

// quoted is a string in which variables stand: pieces of text and expressions.
function quoted(n) {
  const kids = [];
  let at = n.startIndex + 1;
  const text = (end) => end > at && kids.push(node('text', n, [], unescaped(n.text.slice(at - n.startIndex, end - n.startIndex))));
  for (const c of n.namedChildren.filter((c) => ['variable', 'sub_expression'].includes(c.type))) {
    text(c.startIndex);
    kids.push(tree(c));
    at = c.endIndex;
  }
  text(n.endIndex - 1);
  return node('string', n, kids);
}

// values are a command's arguments. The grammar takes the method call (…).F(…) for two of them.
function values(args) {
  const all = [];
  args.forEach((c, i) => {
    if (c.type === 'argument_list' && i > 0 && args[i - 1].endIndex === c.startIndex) all.push(node('invoke', c, [...all.pop().kids, tree(c)]));
    else all.push(tree(c));
  });
  return all;
}

const conditional = (n) => parts(n).flatMap((c) => (/^else(if)?_clauses?$/.test(c.type) ? conditional(c) : [tree(c)]));

const kinds = {
  program: (n) => node('block', n, parts(n).flatMap((c) => (c.type === 'statement_list' ? parts(c) : [c])).map(tree)),
  param_block: (n) => node('params', n, n.descendantsOfType('script_parameter').map(tree)),
  function_parameter_declaration: (n) => node('params', n, n.descendantsOfType('script_parameter').map(tree)),
  script_parameter: (n) => node('param', n, within(n, 'script_parameter_default').map(tree), within(n, 'variable')[0].text.slice(1)),
  function_statement: (n) => node('function', n, parts(n).filter((c) => c.type !== 'function_name').map(tree), within(n, 'function_name')[0].text),
  if_statement: (n) => node('if', n, conditional(n)),
  foreach_statement: (n) => node('foreach', n, parts(n).map(tree)),
  try_statement: (n) => node('try', n, parts(n).flatMap((c) => (c.type === 'catch_clauses' ? parts(c) : [c])).map(tree)),
  catch_clause: (n) => (parts(n).length === 1 ? tree(parts(n)[0]) : node('other', n, [], 'catch of a type')),
  finally_clause: (n) => node('other', n, [], 'finally'),
  flow_control_statement: (n) => node(n.child(0).text, n, parts(n).map(tree)),
  assignment_expression: (n) => node('assign', n, [tree(n.child(0)), tree(n.lastChild)], n.children.find((c) => c.type === 'assignement_operator').text),
  command: (n) => {
    const name = n.childForFieldName('command_name');
    const args = n.childForFieldName('command_elements');
    return node('command', n, [...(name.type === 'command_name_expr' ? [tree(name)] : []), ...(args ? values(parts(args)) : [])],
      name.type === 'command_name_expr' ? '&' : name.text);
  },
  verbatim_string_characters: (n) => node('text', n, [], n.text.slice(1, -1).replaceAll("''", "'")),
  expandable_string_literal: quoted,
  generic_token: (n) => node('text', n, [], n.text),
  command_parameter: (n) => node('flag', n, [], n.text),
  simple_name: (n) => node('text', n, [], n.text),
  decimal_integer_literal: (n) => node('number', n, [], n.text),
  variable: (n) => node('variable', n, [], n.text.replace(/^[$@]\{?|\}$/g, '')),
  array_expression: (n) => node('list', n, parts(n).flatMap(parts).map(tree)),
  array_literal_expression: (n) => node('list', n, parts(n).map(tree)),
  argument_list: (n) => node('list', n, parts(n).map(tree)),
  hash_literal_expression: (n) => node('hash', n, n.namedChildren.flatMap(parts).filter((c) => c.type === 'hash_entry').map(tree)),
  hash_entry: (n) => node('entry', n, parts(n).slice(1).map(tree), parts(n)[0].text),
  script_block_expression: (n) => node('lambda', n, parts(n).map(tree)),
  expression_with_unary_operator: (n) => (n.childCount === 1 ? tree(n.child(0)) : node('unary', n, parts(n).map(tree), n.child(0).text)),
  cast_expression: (n) => node('cast', n, [tree(n.lastChild)], n.child(0).text.slice(1, -1)),
  element_access: (n) => node('index', n, parts(n).map(tree)),
  member_access: (n) => node('member', n, parts(n).map(tree)),
  invokation_expression: (n) => node('invoke', n, parts(n).map(tree)),
};
const blocks = new Set(['statement_list', 'statement_block', 'script_block', 'script_block_body']);

// Of the many levels of an expression, those that only lead to the next are left out.
function tree(n) {
  const kids = parts(n);
  const [left, operator, right] = n.children;
  if (kids.length === 1 && (!kinds[n.type] || n.type === 'array_literal_expression') && !blocks.has(n.type)) return tree(kids[0]);
  if (kinds[n.type]) return kinds[n.type](n);
  if (blocks.has(n.type)) return node('block', n, kids.flatMap((c) => (blocks.has(c.type) ? tree(c).kids : [tree(c)])));
  if (n.type === 'pipeline_chain') return node('pipe', n, kids.map(tree));
  if (n.type.endsWith('_expression') && n.childCount === 3) return node('binary', n, [tree(left), tree(right)], operator.text.toLowerCase());
  return node('other', n, kids.map(tree), n.text);
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
      tree: broken.length ? null : tree(n),
    })),
    tree: broken.length ? null : tree(root),
  };
}

console.log(JSON.stringify(process.argv.slice(2).map(look)));
