// Package powershell interprets the PowerShell scripts for Windows nodes from
// the syntax trees of package check. It supports only the part of the language
// that they use. PowerShell itself is not available where the tests run.
package powershell

import (
	"errors"
	"fmt"
	"strings"

	"flannel/dist/windows/check"
)

// Shell runs scripts. A value is nil for nothing, bool, int, string, []any,
// map[string]any, or *check.Node for a script block. Names are
// case-insensitive. What a Shell does not support is an error of type Unknown,
// which the script cannot catch.
//
// A statement that is left early is an error, too:
//
//	error       by                                caught by
//	*Unknown    the interpreter                   nobody: it ends the script
//	ErrStopped  a command of the caller           nobody
//	*returned   return                            the function, or the script
//	others      throw, or a command that fails    catch
type Shell struct {
	// Commands are commands of the caller. They come before functions of the
	// scripts. "&" is called for a program that the script names by a path.
	Commands map[string]func(args []any) (any, error)

	functions map[string]*check.Node
	scopes    []map[string]any // the first is global
	caught    error            // the error that the current catch block handles
}

// NewShell returns a shell with the functions of modules.
func NewShell(modules ...check.Script) *Shell {
	s := &Shell{functions: map[string]*check.Node{},
		scopes: []map[string]any{{"true": true, "false": false, "null": nil}}}
	for _, m := range modules {
		for _, n := range m.Tree.Kids {
			if n.Kind == "function" {
				s.functions[strings.ToLower(n.Text)] = n
			}
		}
	}
	return s
}

// Set sets a global variable.
func (s *Shell) Set(name string, v any) { s.scopes[0][strings.ToLower(name)] = v }

// Get returns the value of a variable from the innermost scope that has it, and
// whether there is one.
func (s *Shell) Get(name string) (any, bool) {
	for i := len(s.scopes) - 1; i >= 0; i-- {
		if v, ok := s.scopes[i][strings.ToLower(name)]; ok {
			return v, true
		}
	}
	return nil, false
}

// Run runs a script with named parameters. It returns the error that the
// script, or one of its commands, throws.
func (s *Shell) Run(script check.Script, parameters map[string]any) error {
	if len(script.Errors) > 0 || script.Tree == nil {
		return fmt.Errorf("parse %s: %v", script.File, script.Errors)
	}
	s.Set("PSBoundParameters", parameters)
	body := script.Tree.Kids
	if len(body) > 0 && body[0].Kind == "params" {
		if err := s.bind(body[0], parameters, nil); err != nil {
			return err
		}
		body = body[1:]
	}
	_, err := s.block(&check.Node{Kind: "block", Kids: body})
	if ended := (*returned)(nil); errors.As(err, &ended) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", script.File, err)
	}
	return nil
}

// bind sets the variables of parameters: by name, by position, or to their
// defaults. Types are ignored.
func (s *Shell) bind(params *check.Node, named map[string]any, positional []any) error {
	scope := s.scopes[len(s.scopes)-1]
	known := map[string]bool{}
	for i, p := range params.Kids {
		known[p.Text] = true
		value, given := named[p.Text]
		switch {
		case given:
		case i < len(positional):
			value = positional[i]
		case len(p.Kids) > 0:
			var err error
			if value, err = s.value(p.Kids[0]); err != nil {
				return err
			}
		}
		scope[strings.ToLower(p.Text)] = value
	}
	for name := range named {
		if !known[name] {
			return fmt.Errorf("unknown parameter -%s", name)
		}
	}
	return nil
}

// ErrStopped ends a script as Ctrl-C does when a command of the caller returns
// it. The script cannot catch it.
var ErrStopped = errors.New("stopped")

// Unknown is the error for something that a Shell does not support.
type Unknown struct {
	Line int
	What string
}

func (u *Unknown) Error() string {
	return fmt.Sprintf("line %d: not supported by this interpreter: %s", u.Line, u.What)
}

func unknown(n *check.Node, what string) error {
	return &Unknown{n.Line, strings.TrimSpace(n.Kind + " " + n.Text + " " + what)}
}

// returned is the error by which a return statement leaves blocks. output is
// the value of the function: everything that its statements have output, and
// the operand of return.
type returned struct{ output []any }

func (*returned) Error() string { return "return" }

// block runs statements. Its value is the output of all of them.
func (s *Shell) block(n *check.Node) (any, error) {
	var output []any
	for _, statement := range n.Kids {
		v, err := s.statement(statement)
		if err != nil {
			return nil, addOutput(err, output)
		}
		output = append(output, list(v)...)
	}
	return unwrap(output), nil
}

// addOutput puts the output of earlier statements before that of a return,
// because a function returns both, even by mistake.
func addOutput(err error, output []any) error {
	if ended := (*returned)(nil); errors.As(err, &ended) {
		ended.output = append(output, ended.output...)
	}
	return err
}

// unwrap returns nil for no values and a single value as itself, as PowerShell
// does with output.
func unwrap(output []any) any {
	switch len(output) {
	case 0:
		return nil
	case 1:
		return output[0]
	}
	return output
}

// statement runs a statement. An expression is one as well: its value is output.
func (s *Shell) statement(n *check.Node) (any, error) {
	switch n.Kind {
	case "function":
		s.functions[strings.ToLower(n.Text)] = n
		return nil, nil
	case "assign":
		return nil, s.assign(n)
	case "try":
		return s.try(n)
	case "throw":
		return nil, s.throw(n)
	case "return":
		var v any
		var err error
		if len(n.Kids) > 0 {
			if v, err = s.value(n.Kids[0]); err != nil {
				return nil, err
			}
		}
		return nil, &returned{list(v)}
	}
	return s.value(n)
}

// ifElse runs the first block whose condition is true. Later conditions are not
// evaluated, because they may fail.
func (s *Shell) ifElse(n *check.Node) (any, error) {
	// The kids are condition, block, condition, block, and at the end perhaps the block
	// of else.
	for i := 0; i+1 < len(n.Kids); i += 2 {
		v, err := s.value(n.Kids[i])
		if err != nil {
			return nil, err
		}
		if truth(v) {
			return s.block(n.Kids[i+1])
		}
	}
	if len(n.Kids)%2 == 1 {
		return s.block(n.Kids[len(n.Kids)-1])
	}
	return nil, nil
}

// forEach returns the output of all iterations as a list. The kids are the variable,
// the values and the block. The variable stays set after the loop.
func (s *Shell) forEach(n *check.Node) (any, error) {
	v, err := s.value(n.Kids[1])
	if err != nil {
		return nil, err
	}
	var output []any
	for _, item := range list(v) {
		s.scopes[len(s.scopes)-1][strings.ToLower(n.Kids[0].Text)] = item
		v, err := s.block(n.Kids[2])
		if err != nil {
			return nil, addOutput(err, output)
		}
		output = append(output, list(v)...)
	}
	return output, nil
}

// try runs a try statement. Its catch does not handle Unknown errors,
// ErrStopped and return statements.
func (s *Shell) try(n *check.Node) (any, error) {
	for i, part := range n.Kids {
		if i > 1 || part.Kind != "block" {
			return nil, unknown(n, "with "+part.Kind+" "+part.Text)
		}
	}
	v, err := s.block(n.Kids[0])
	not, ended := (*Unknown)(nil), (*returned)(nil)
	if err == nil || errors.As(err, &not) || errors.As(err, &ended) || errors.Is(err, ErrStopped) || len(n.Kids) < 2 {
		return v, err
	}
	// A nested catch has its own error; after it, throw without an operand throws the
	// outer one again. $_ is only the text of the error here.
	outer := s.caught
	defer func() { s.caught = outer }()
	s.caught = err
	s.scopes[len(s.scopes)-1]["_"] = err.Error()
	return s.block(n.Kids[1])
}

// throw returns the error of a throw statement. Without an operand it is the error
// that the catch block handles.
func (s *Shell) throw(n *check.Node) error {
	if len(n.Kids) == 0 {
		return s.caught
	}
	v, err := s.value(n.Kids[0])
	if err != nil {
		return err
	}
	return fmt.Errorf("line %d: %s", n.Line, text(v))
}

// assign sets a variable in the innermost scope, as PowerShell does.
// Environment variables are global.
func (s *Shell) assign(n *check.Node) error {
	v, err := s.value(n.Kids[1])
	if err != nil {
		return err
	}
	if n.Text == "+=" {
		old, err := s.value(n.Kids[0])
		if err != nil {
			return err
		}
		v = sum(old, v)
	}
	to := n.Kids[0]
	switch to.Kind {
	case "variable":
		switch name := strings.ToLower(to.Text); {
		case name == "null": // discards the value
		case strings.HasPrefix(name, "env:"):
			s.Set(name, v)
		default:
			s.scopes[len(s.scopes)-1][name] = v
		}
		return nil
	case "index", "member":
		of, err := s.value(to.Kids[0])
		if err != nil {
			return err
		}
		key, err := s.value(to.Kids[1])
		if err != nil {
			return err
		}
		if hash, ok := of.(map[string]any); ok {
			name, _ := keyOf(hash, text(key))
			hash[name] = v
			return nil
		}
	}
	return unknown(n, "to "+to.Kind)
}
