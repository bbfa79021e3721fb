package powershell

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"flannel/dist/windows/check"
)

// command runs a command. input is the value from a pipe, or nil.
func (s *Shell) command(n *check.Node, input any) (any, error) {
	// The order is that of PowerShell, with the caller's commands in the place of
	// aliases: they can replace functions and cmdlets.
	args, err := s.values(n.Kids)
	if err != nil {
		return nil, err
	}
	if run := s.Commands[n.Text]; run != nil {
		v, err := run(args)
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
	if errors.Is(err, errUnknownCommand) {
		return nil, unknown(n, strings.Join(Texts(args...), " "))
	}
	return v, err
}

// call runs a function of a script. It sees the variables of its callers.
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
			return unwrap(ended.output), nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Text, err)
		}
	}
	return v, nil
}

// pipe runs a pipeline. Each command gets the whole output of the one before.
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

// errUnknownCommand means that builtin has no cmdlet of that name.
var errUnknownCommand = errors.New("no such command")

// builtin runs a cmdlet that only works on values. It takes parameters by their
// position in the scripts: "-Name N -Value V" are the four arguments -Name, N, -Value
// and V.
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
	return nil, errUnknownCommand
}

// filter runs a block for each value, as $_. With where it returns the values
// for which the block is true, otherwise the output of the block.
func (s *Shell) filter(values []any, block *check.Node, where bool) (any, error) {
	result := []any{}
	for _, item := range values {
		s.scopes = append(s.scopes, map[string]any{"_": item})
		v, err := s.block(block)
		s.scopes = s.scopes[:len(s.scopes)-1]
		switch {
		case err != nil:
			return nil, err
		case !where:
			result = append(result, list(v)...)
		case truth(v):
			result = append(result, item)
		}
	}
	return result, nil
}

// FromJSON returns the value of a JSON document.
func FromJSON(document string) (v any, err error) {
	d := json.NewDecoder(strings.NewReader(document))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("ConvertFrom-Json: %w", err)
	}
	return numbers(v)
}

// numbers converts the numbers in a document to int, in place. Other numbers are an
// error, because a Shell has no type for them.
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
