// Package flags adds to pflag what flannel's command line needs: a table of flags
// whose values are validated together, environment variables, and Go's notation with
// one dash.
package flags

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"flannel/pkg/conf"
)

// Flag is a row in the table. O is the type of the options that Set changes.
//
// Set is called once for each given value. If there is none, it is called with Def,
// so that defaults are validated like given values, unless Repeat is set. A problem
// with one flag does not keep the others from being set. The error must not quote a
// value that may be a secret.
type Flag[O any] struct {
	// Name is without dashes. Arg names the value in the help, and is "" for a Boolean
	// flag, which takes a value only after "=".
	Name, Arg, Def, Help string
	Repeat               bool // may be given more than once; no default
	NoEnv                bool // only on the command line
	Set                  func(o *O, text string) error
}

// Group is a part of the table with its own heading in the help.
type Group[O any] struct {
	Title string
	Flags []Flag[O]
}

// Values are the values given for one flag, in order.
type Values struct {
	Source string // "--iface" or "FLANNELD_IFACE"
	texts  []string
}

// Given is the result of Parse. Neither Problems nor Warnings contain secrets, if
// the errors of Set do not.
type Given struct {
	Flags    map[string]Values // by name; without flags that have their default
	OnLine   bool              // the command line has flags
	Unknown  string            // name of a flag that is not in the table, where parsing ended; "": none
	Rest     []string          // the arguments after the flags
	Problems []error
	Warnings []string // likely mistakes that have no effect
}

// Parse sets o from args (without the program's name), else from environ (as
// from os.Environ), else to the defaults. The flags end before the first other
// argument or after "--".
func Parse[O any](o *O, table []Group[O], args, environ []string) Given {
	line := pflag.NewFlagSet("", pflag.ContinueOnError)
	line.SetInterspersed(false)
	known := map[string]Flag[O]{}
	for _, g := range table {
		g.AddTo(line)
		for _, f := range g.Flags {
			known[f.Name] = f
		}
	}
	given, warnings := scanEnv(environ, known)
	onLine := map[string]Values{}
	err := line.ParseAll(DoubleDashes(line, args, false), func(f *pflag.Flag, text string) error {
		onLine[f.Name] = Values{"--" + f.Name, append(onLine[f.Name].texts, text)}
		return nil
	})
	// A flag on the command line replaces all values from the environment, also if it
	// may be repeated.
	maps.Copy(given, onLine)
	g := Given{Flags: given, OnLine: len(onLine) > 0, Rest: line.Args(), Warnings: warnings}
	if err != nil { // the arguments after the mistake may belong to it
		g.Problems, g.Unknown, g.Rest = append(g.Problems, Explain(line, err)), UnknownName(err), nil
	}
	// In the order of the table, so that the order of the problems does not depend on
	// a map.
	for _, group := range table {
		for _, f := range group.Flags {
			v, ok := given[f.Name]
			if !ok && !f.Repeat {
				v = Values{"default of --" + f.Name, []string{f.Def}}
			}
			for _, text := range v.texts {
				if err := f.Set(o, text); err != nil {
					g.Problems = append(g.Problems, fmt.Errorf("%s: %w", v.Source, err))
				}
			}
		}
	}
	return g
}

// scanEnv parses environment variables. A variable gives one value, also to a flag
// that may be repeated. An empty variable counts as absent. An unknown one is only a
// warning, because Kubernetes may have set it for a Service with that name.
func scanEnv[O any](environ []string, known map[string]Flag[O]) (map[string]Values, []string) {
	given := map[string]Values{}
	var warnings []string
	variables := map[string]string{}
	for name, f := range known {
		if !f.NoEnv {
			variables[Variable(name)] = name
		}
	}
	for _, e := range slices.Sorted(slices.Values(environ)) { // warnings in a stable order
		key, value, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(key, prefix) || value == "" {
			continue
		}
		if name, ok := variables[key]; ok {
			given[name] = Values{key, []string{value}}
			continue
		}
		text := strings.Trim(strconv.Quote(fmt.Sprintf("%.60s", key)), `"`) + ": unknown environment variable"
		name := strings.ReplaceAll(strings.TrimPrefix(key, prefix), "_", "-")
		if near := conf.Nearest(name, slices.Sorted(maps.Values(variables))); near != "" {
			text += ", did you mean " + Variable(near) + "?"
		}
		warnings = append(warnings, text)
	}
	return given, warnings
}

const prefix = "FLANNELD_" // of variables

// Variable returns the name of a flag's environment variable.
func Variable(name string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// The functions below make rows for common kinds of flags. at returns the address
// of the option in O.

// Text returns a flag for any text.
func Text[O any](name, arg, def, help string, at func(*O) *string) Flag[O] {
	return Flag[O]{Name: name, Arg: arg, Def: def, Help: help, Set: func(o *O, v string) error { *at(o) = v; return nil }}
}

// Texts returns a flag for any text that may be given more than once. An empty
// text adds nothing.
func Texts[O any](name, arg, help string, at func(*O) *[]string) Flag[O] {
	return Flag[O]{Name: name, Arg: arg, Repeat: true, Help: help, Set: func(o *O, v string) error {
		if v != "" {
			*at(o) = append(*at(o), v)
		}
		return nil
	}}
}

// Bool returns a Boolean flag.
func Bool[O any](name, def, help string, at func(*O) *bool) Flag[O] {
	return Flag[O]{Name: name, Def: def, Help: help, Set: func(o *O, v string) (err error) {
		*at(o), err = ParseBool(v)
		return err
	}}
}

// Int returns a flag for an integer from least to most. to sets the option, so that
// it can have another unit or type than the flag.
func Int[O any](name, arg, def string, least, most int, help string, to func(*O, int)) Flag[O] {
	return Flag[O]{Name: name, Arg: arg, Def: def, Help: help, Set: func(o *O, v string) error {
		n, err := ParseInt(v, least, most)
		if err == nil {
			to(o, n)
		}
		return err
	}}
}

// LineOnly removes a flag's environment variable: FLANNELD_VERSION, for
// example, may be the version of an image.
func LineOnly[O any](f Flag[O]) Flag[O] { f.NoEnv = true; return f }
