// Package powershell runs the scripts for Windows, as package check reads them: of the language what they are made of, and
// nothing else (Shell). PowerShell itself does not run where the tests run.
package powershell

import (
	"errors"
	"fmt"
	"strings"

	"flannel/dist/windows/check"
)

// Shell runs scripts. Values are those of encoding/json with int for numbers, *check.Node for a block of script, and nil
// for nothing. Names are known in any case. What a script says that a Shell does not understand is an error, which no
// catch of the script's hides: see Unknown.
type Shell struct {
	// Commands are the caller's own; they go before the scripts' functions. One that a path names is "&".
	Commands map[string]func(args []any) (any, error)

	functions map[string]*check.Node
	scopes    []map[string]any // the first is global
	caught    error            // in a catch
}

// NewShell knows the functions of modules.
func NewShell(modules ...check.Script) *Shell {
	s := &Shell{functions: map[string]*check.Node{}, scopes: []map[string]any{{"true": true, "false": false, "null": nil}}}
	for _, m := range modules {
		for _, n := range m.Tree.Kids {
			if n.Kind == "function" {
				s.functions[strings.ToLower(n.Text)] = n
			}
		}
	}
	return s
}

// Set gives a global variable a value.
func (s *Shell) Set(name string, v any) { s.scopes[0][strings.ToLower(name)] = v }

// Get is a variable's value, and whether it has one.
func (s *Shell) Get(name string) (any, bool) {
	for i := len(s.scopes) - 1; i >= 0; i-- {
		if v, ok := s.scopes[i][strings.ToLower(name)]; ok {
			return v, true
		}
	}
	return nil, false
}

// Run runs a script with parameters by name. Its error is what the script, or a command, throws.
func (s *Shell) Run(script check.Script, parameters map[string]any) error {
	if len(script.Errors) > 0 || script.Tree == nil {
		return fmt.Errorf("%s does not parse: %v", script.File, script.Errors)
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

// bind gives parameters their values: by name, by place, or their defaults. Types count only where they give one.
func (s *Shell) bind(params *check.Node, named map[string]any, placed []any) error {
	scope := s.scopes[len(s.scopes)-1]
	known := map[string]bool{}
	for i, p := range params.Kids {
		known[p.Text] = true
		value, given := named[p.Text]
		switch {
		case given:
		case i < len(placed):
			value = placed[i]
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
			return fmt.Errorf("there is no parameter -%s", name)
		}
	}
	return nil
}

// ErrStopped is what a command of the caller's returns to end a script as Ctrl-C does: no catch learns of it.
var ErrStopped = errors.New("stopped")

// Unknown is an error for what a Shell does not understand.
type Unknown struct {
	Line int
	What string
}

func (u *Unknown) Error() string {
	return fmt.Sprintf("line %d: the tests' shell does not understand %s", u.Line, u.What)
}

func unknown(n *check.Node, what string) error {
	return &Unknown{n.Line, strings.TrimSpace(n.Kind + " " + n.Text + " " + what)}
}

// returned carries what a function gives: what its statements left before, too.
type returned struct{ left []any }

func (*returned) Error() string { return "return" }

// block runs statements; what they leave is its value, as of a function.
func (s *Shell) block(n *check.Node) (any, error) {
	var left []any
	for _, statement := range n.Kids {
		v, err := s.statement(statement)
		if err != nil {
			return nil, leaving(err, left)
		}
		left = append(left, list(v)...)
	}
	return one(left), nil
}

// leaving adds to a return what was left before it, by a slip or not: a function gives that, too.
func leaving(err error, left []any) error {
	if ended := (*returned)(nil); errors.As(err, &ended) {
		ended.left = append(left, ended.left...)
	}
	return err
}

// one is what a caller gets of what was left.
func one(left []any) any {
	switch len(left) {
	case 0:
		return nil
	case 1:
		return left[0]
	}
	return left
}

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

// choose runs the first block whose condition is true. Conditions after it are not looked at, for they may ask for more.
func (s *Shell) choose(n *check.Node) (any, error) {
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

// each leaves all that its block left, so that $x = foreach … is a list.
func (s *Shell) each(n *check.Node) (any, error) {
	v, err := s.value(n.Kids[1])
	if err != nil {
		return nil, err
	}
	var left []any
	for _, one := range list(v) {
		s.scopes[len(s.scopes)-1][strings.ToLower(n.Kids[0].Text)] = one
		v, err := s.block(n.Kids[2])
		if err != nil {
			return nil, leaving(err, left)
		}
		left = append(left, list(v)...)
	}
	return left, nil
}

// try hides from the script what the tests must learn of: what is not understood, and the end that a caller asked for.
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
	outer := s.caught
	defer func() { s.caught = outer }()
	s.caught = err
	s.scopes[len(s.scopes)-1]["_"] = err.Error()
	return s.block(n.Kids[1])
}

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

// assign changes the variable of the innermost scope, as PowerShell does; the environment is one for all.
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
		case name == "null": // what is assigned to it is gone
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
