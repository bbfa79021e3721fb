package powershell

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"flannel/dist/windows/check"
)

// command runs one, with what comes through a pipe.
func (s *Shell) command(n *check.Node, input any) (any, error) {
	args, err := s.values(n.Kids)
	if err != nil {
		return nil, err
	}
	if own := s.Commands[n.Text]; own != nil {
		v, err := own(args)
		if err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", n.Line, n.Text, err)
		}
		return v, nil
	}
	if f := s.functions[strings.ToLower(n.Text)]; f != nil {
		for _, k := range n.Kids {
			if k.Kind == "flag" {
				return nil, unknown(n, "with parameters by name: "+k.Text)
			}
		}
		return s.call(f, args)
	}
	v, err := s.builtin(n.Text, input, args)
	if errors.Is(err, errNoCommand) {
		return nil, unknown(n, strings.Join(Texts(args...), " "))
	}
	return v, err
}

// call runs a function of a script, which sees the variables of its callers.
func (s *Shell) call(f *check.Node, args []any) (v any, err error) {
	s.scopes = append(s.scopes, map[string]any{})
	defer func() { s.scopes = s.scopes[:len(s.scopes)-1] }()
	for _, part := range f.Kids {
		if part.Kind == "params" {
			err = s.bind(part, nil, args)
		} else {
			v, err = s.block(part)
		}
		if ended := (*returned)(nil); errors.As(err, &ended) {
			return one(ended.left), nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Text, err)
		}
	}
	return v, nil
}

// pipe hands on what comes first as a whole; cmdlets go through it.
func (s *Shell) pipe(n *check.Node) (any, error) {
	v, err := s.value(n.Kids[0])
	for _, k := range n.Kids[1:] {
		if err == nil && k.Kind != "command" {
			err = unknown(k, "in a pipe")
		}
		if err != nil {
			return nil, err
		}
		v, err = s.command(k, v)
	}
	return v, err
}

// errNoCommand says that there is no cmdlet of that name here.
var errNoCommand = errors.New("no such command")

// builtin are the cmdlets that touch nothing but values.
func (s *Shell) builtin(name string, input any, args []any) (any, error) {
	words := Texts(args...)
	switch name {
	case "Set-StrictMode", "Import-Module", "Out-Host", "Out-Null":
		return nil, nil
	case "Join-Path":
		return strings.TrimRight(words[0], `\`) + `\` + words[1], nil
	case "ConvertTo-Json":
		raw, err := json.MarshalIndent(input, "", "    ")
		return string(raw), err
	case "ConvertFrom-Json":
		return FromJSON(text(input))
	case "Set-Variable": // -Name N -Value V
		s.scopes[len(s.scopes)-1][strings.ToLower(words[1])] = args[3]
		return nil, nil
	case "Get-Variable": // -Name N -ValueOnly
		v, ok := s.Get(words[1])
		if !ok {
			return nil, fmt.Errorf("a variable with the name '%s' cannot be found", words[1])
		}
		return v, nil
	case "Where-Object", "ForEach-Object":
		return s.filter(list(input), args[0].(*check.Node), name == "Where-Object")
	}
	return nil, errNoCommand
}

// filter runs a block for each value, as $_: what it gives is the result, or whether the value stays.
func (s *Shell) filter(values []any, block *check.Node, stays bool) (any, error) {
	all := []any{}
	for _, one := range values {
		s.scopes = append(s.scopes, map[string]any{"_": one})
		v, err := s.block(block)
		s.scopes = s.scopes[:len(s.scopes)-1]
		switch {
		case err != nil:
			return nil, err
		case !stays:
			all = append(all, list(v)...)
		case truth(v):
			all = append(all, one)
		}
	}
	return all, nil
}

// FromJSON is a JSON document as a value.
func FromJSON(document string) (v any, err error) {
	d := json.NewDecoder(strings.NewReader(document))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("ConvertFrom-Json: %w", err)
	}
	return numbers(v)
}

// numbers turns those of a document into int; there are no others here.
func numbers(v any) (_ any, err error) {
	switch v := v.(type) {
	case json.Number:
		return strconv.Atoi(v.String())
	case []any:
		for i := range v {
			if v[i], err = numbers(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for key := range v {
			if v[key], err = numbers(v[key]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}
