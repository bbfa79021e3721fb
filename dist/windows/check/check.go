// Package check reads the scripts for Windows by PowerShell's grammar: PowerShell itself does not run where the tests run.
// It is for tests alone.
package check

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// Script is what the grammar says of a file; parse.mjs writes it.
type Script struct {
	File      string
	Errors    []string // of its syntax; with any, there is no tree
	Functions []string
	Commands  []Command
	Tree      *Node
}

// Command is one that a script runs.
type Command struct {
	Line       int
	Name, Text string
	Tree       *Node
}

// Node is a statement or an expression. Its kind says what Text and Kids are:
//
//	block      statements
//	params     kids are param: Text is its name, the kid its default
//	function   Text is its name; params if it has some, and a block
//	if         condition and block in turn, and at last a block for all else
//	foreach    variable, list, block
//	try        block, and that of its catch; other for a finally, or where the catch is of a type
//	throw, return    a value, or none
//	assign     Text is = or +=; what is assigned to, and a value
//	command    Text is its name, & where the first kid is the program; arguments
//	pipe       values and commands
//	text, number     Text
//	flag      Text is the name of a parameter, after its hyphen, as of a cmdlet
//	string     pieces, joined
//	variable   Text is its name
//	list       values, or lists of such
//	hash       kids are entry: Text is its key, the kid its value
//	lambda     a block
//	unary, binary    Text is the operator
//	cast       Text is the type
//	index, member    of the first kid the second
//	invoke     of the first kid the method that the second names, with a list of arguments
//	other      Text; nothing here understands it
type Node struct {
	Kind, Text string
	Line       int
	Kids       []*Node
}

// Parse reads files. program is the path of parse.mjs, beside what it needs (make bin/powershell/parse.mjs).
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

// Call is one of flanneld.exe as it stands in a script: Words are its arguments, in which variables stand by name.
type Call struct {
	Line  int
	Text  string
	Words []string
}

// Calls are those of flanneld.exe, in order. What a function only passes on is not among them.
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

// flanneld are the arguments of a command that runs it; nil: it does not.
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

// words are the texts that an expression is made of; a variable that stands for a list is looked up.
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

// template is a string with its variables by name.
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
