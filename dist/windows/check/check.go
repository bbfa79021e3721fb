// Package check parses the scripts for Windows by PowerShell's grammar, for tests, which run without PowerShell.
package check

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// Script is the result of parsing a file, as parse.mjs prints it.
type Script struct {
	File      string
	Errors    []string // of its syntax; if there are any, Tree is nil
	Functions []string
	Commands  []Command
	Tree      *Node
}

// Command is a command of a script.
type Command struct {
	Line       int
	Name, Text string
	Tree       *Node
}

// Node is a statement or an expression. Its Kind determines what Text and Kids are:
//
//	block      statements
//	params     kids are param: Text is its name, the kid its default
//	function   Text is its name; params if it has some, and a block
//	if         condition and block in turn, and possibly a last block (else)
//	foreach    variable, list, block
//	try        block, and that of its catch; a finally, or a catch with a type, is other
//	throw, return    a value, or nothing
//	assign     Text is = or +=; target and value
//	command    Text is its name, & where the first kid is the program; arguments
//	pipe       values and commands
//	text, number     Text
//	flag      Text is the name of a parameter, after its hyphen, as of a cmdlet
//	string     pieces, joined
//	variable   Text is its name
//	list       values, or lists of values
//	hash       kids are entry: Text is its key, the kid its value
//	lambda     a block
//	unary, binary    Text is the operator
//	cast       Text is the type
//	index, member    object, and its index or member
//	invoke     object, name of the method, list of arguments
//	other      Text is syntax that this package does not support
type Node struct {
	Kind, Text string
	Line       int
	Kids       []*Node
}

// Parse parses files. program is the path of parse.mjs with its dependencies beside it (make bin/powershell/parse.mjs).
func Parse(program string, files ...string) (all []Script, err error) {
	out, err := exec.Command("node", append([]string{program}, files...)...).Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return nil, fmt.Errorf("parse scripts: %w\n%s", err, exit.Stderr)
	} else if err != nil {
		return nil, fmt.Errorf("parse scripts: %w", err)
	}
	if err := json.Unmarshal(out, &all); err != nil || len(all) != len(files) {
		return nil, fmt.Errorf("parse scripts: %d files of %d: %w", len(all), len(files), err)
	}
	return all, nil
}

// Call is a call of flanneld.exe in a script. Words are its arguments, in which variables are written as $name.
type Call struct {
	Line  int
	Text  string
	Words []string
}

// Calls returns the calls of flanneld.exe, in order, without those whose arguments are only a parameter of a function.
func (s Script) Calls() (calls []Call) {
	lists := map[string][]string{}
	s.Tree.walk(func(n *Node) {
		if n.Kind == "assign" && n.Kids[0].Kind == "variable" && (n.Kids[1].Kind == "list" || n.Kids[1].Kind == "text") {
			name := strings.ToLower(n.Kids[0].Text)
			lists[name] = append(lists[name], n.Kids[1].words(nil)...)
		}
	})
	for _, c := range s.Commands {
		if args := c.flanneld(); args != nil {
			if words := args.words(lists); len(words) > 0 {
				calls = append(calls, Call{c.Line, c.Text, words})
			}
		}
	}
	return calls
}

// flanneld returns the arguments if the command runs flanneld.exe, otherwise nil.
func (c Command) flanneld() *Node {
	n := c.Tree
	switch {
	case n.Text == "Read-Program" && strings.EqualFold(n.Kids[0].Text, "flanneld"), n.Text == "Assert-Flanneld", n.Text == "Invoke-Flanneld":
		return &Node{Kind: "list", Kids: n.Kids[1:]}
	case n.Text == "Start-Component" && n.Kids[1].Text == "flanneld":
		return n.Kids[3]
	}
	return nil
}

func (n *Node) walk(f func(*Node)) {
	if n == nil {
		return
	}
	f(n)
	for _, k := range n.Kids {
		k.walk(f)
	}
}

// words returns the texts that an expression consists of. Variables are replaced by the list that they hold.
func (n *Node) words(lists map[string][]string) (words []string) {
	switch n.Kind {
	case "text", "flag":
		return []string{n.Text}
	case "string":
		return []string{n.template()}
	case "variable":
		return lists[strings.ToLower(n.Text)]
	case "list", "binary":
		for _, k := range n.Kids {
			words = append(words, k.words(lists)...)
		}
	}
	return words
}

// template returns a string with its variables as $name.
func (n *Node) template() string {
	var b strings.Builder
	n.walk(func(n *Node) {
		switch n.Kind {
		case "text":
			b.WriteString(n.Text)
		case "variable":
			b.WriteString("$" + n.Text)
		}
	})
	return b.String()
}
