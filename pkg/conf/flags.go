package conf

// This file adds to pflag what flannel's command line needs: a table of flags
// whose values are validated together, environment variables, and Go's notation with
// one dash.

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Flag is a row in the table of flags. O is the type of the options, such as the struct
// of all values of a command line.
type Flag[O any] struct {
	Name   string // without dashes
	Arg    string // names the value in the help; "": a Boolean flag, whose value can only follow "="
	Def    string // the default, as a user would write it
	Help   string
	Repeat bool // may be given more than once, and has no default
	NoEnv  bool // only on the command line, without an environment variable

	// Set puts a value into the options. ParseFlags calls it for each value that is given, in
	// order. If none is, ParseFlags calls it with Def, so that defaults are validated like
	// given values, or, for a flag with Repeat, not at all. A problem with one flag does
	// not keep the others from being set. The error must not quote a value that may be a
	// secret.
	Set func(o *O, text string) error
}

// FlagGroup is a part of the table with its own heading in the help.
type FlagGroup[O any] struct {
	Title string
	Flags []Flag[O]
}

// FlagValues are the values given for one flag, in order.
type FlagValues struct {
	Source string   // where: "--iface" or "FLANNELD_IFACE"
	texts  []string // as given
}

// GivenFlags is the result of ParseFlags. Neither Problems nor Warnings contain secrets, if
// the errors of Set do not.
type GivenFlags struct {
	Flags    map[string]FlagValues // by the flag's name; a flag that is not given is not in it
	OnLine   bool                  // the command line has flags; else they are from the environment
	Unknown  string                // name of a flag that is not in the table, where parsing ended; "": there is none
	Rest     []string              // the arguments after the flags; none after a mistake
	Problems []error
	Warnings []string // likely mistakes that have no effect
}

// ParseFlags sets o from args (without the program's name), else from environ (as
// from os.Environ), else to the defaults. The flags end before the first other
// argument or after "--". The first mistake in the notation, such as an unknown flag,
// ends the parsing of args; a value that Set refuses does not.
func ParseFlags[O any](o *O, table []FlagGroup[O], args, environ []string) GivenFlags {
	line := pflag.NewFlagSet("", pflag.ContinueOnError)
	line.SetInterspersed(false)
	known := map[string]Flag[O]{}
	for _, group := range table {
		group.AddTo(line)
		for _, f := range group.Flags {
			known[f.Name] = f
		}
	}
	given, warnings := scanEnv(environ, known)
	onLine := map[string]FlagValues{}
	interspersed := false // what follows the first argument that is no flag may be a command's
	err := line.ParseAll(DoubleDashes(line, args, interspersed), func(f *pflag.Flag, text string) error {
		onLine[f.Name] = FlagValues{"--" + f.Name, append(onLine[f.Name].texts, text)}
		return nil
	})
	// A flag on the command line replaces all values from the environment, also if it
	// may be repeated.
	maps.Copy(given, onLine)
	result := GivenFlags{Flags: given, OnLine: len(onLine) > 0, Rest: line.Args(), Warnings: warnings}
	if err != nil {
		result.Problems, result.Unknown = []error{ExplainFlag(line, err)}, UnknownFlag(err)
		result.Rest = nil // the value of an unknown flag would look like a command
	}
	// In the order of the table, so that the order of the problems does not depend on
	// a map. Flags before a mistake in the notation are set even so: they may have problems, too.
	for _, group := range table {
		for _, f := range group.Flags {
			v, ok := given[f.Name]
			if !ok && !f.Repeat {
				v = FlagValues{"default of --" + f.Name, []string{f.Def}}
			}
			for _, text := range v.texts {
				if err := f.Set(o, text); err != nil {
					result.Problems = append(result.Problems, fmt.Errorf("%s: %w", v.Source, err))
				}
			}
		}
	}
	return result
}

// scanEnv returns the values in environment variables, by the flag's name, and a warning
// for each unknown variable with our prefix. Such a variable is no error, because
// Kubernetes may have set it for a Service with that name. A variable gives one value,
// also to a flag that may be repeated. An empty variable counts as absent.
func scanEnv[O any](environ []string, known map[string]Flag[O]) (map[string]FlagValues, []string) {
	given := map[string]FlagValues{}
	var warnings []string
	variables := map[string]string{} // names of flags by those of their variables
	for name, f := range known {
		if !f.NoEnv {
			variables[FlagVariable(name)] = name
		}
	}
	for _, e := range slices.Sorted(slices.Values(environ)) { // warnings in a stable order
		key, value, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(key, variablePrefix) || value == "" {
			continue
		}
		if name, ok := variables[key]; ok {
			given[name] = FlagValues{key, []string{value}}
			continue
		}
		// The name is quoted and cut, because a terminal would interpret control characters.
		text := strings.Trim(strconv.Quote(fmt.Sprintf("%.60s", key)), `"`) + ": unknown environment variable"
		name := strings.ReplaceAll(strings.TrimPrefix(key, variablePrefix), "_", "-")
		if near := nearest(name, slices.Sorted(maps.Values(variables))); near != "" {
			text += ", did you mean " + FlagVariable(near) + "?"
		}
		warnings = append(warnings, text)
	}
	return given, warnings
}

const variablePrefix = "FLANNELD_" // of variables

// FlagVariable returns the name of a flag's environment variable: FLANNELD_IP_MASQ for
// ip-masq.
func FlagVariable(name string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// The functions below make rows for common kinds of flags. at returns the address
// of the option in O.

// TextFlag returns a flag for any text.
func TextFlag[O any](name, arg, def, help string, at func(*O) *string) Flag[O] {
	return Flag[O]{Name: name, Arg: arg, Def: def, Help: help, Set: func(o *O, v string) error { *at(o) = v; return nil }}
}

// TextsFlag returns a flag for any text that may be given more than once. An empty
// text adds nothing.
func TextsFlag[O any](name, arg, help string, at func(*O) *[]string) Flag[O] {
	return Flag[O]{Name: name, Arg: arg, Repeat: true, Help: help, Set: func(o *O, v string) error {
		if v != "" {
			*at(o) = append(*at(o), v)
		}
		return nil
	}}
}

// BoolFlag returns a Boolean flag.
func BoolFlag[O any](name, def, help string, at func(*O) *bool) Flag[O] {
	return Flag[O]{Name: name, Def: def, Help: help, Set: func(o *O, v string) (err error) {
		*at(o), err = ParseBool(v)
		return err
	}}
}

// IntFlag returns a flag for an integer from least to most. set puts it into the options,
// where it can have another unit or type than the flag.
func IntFlag[O any](name, arg, def string, least, most int, help string, set func(*O, int)) Flag[O] {
	return Flag[O]{Name: name, Arg: arg, Def: def, Help: help, Set: func(o *O, v string) error {
		n, err := parseInt(v, least, most)
		if err == nil {
			set(o, n)
		}
		return err
	}}
}

// LineOnly removes a flag's environment variable: FLANNELD_VERSION, for
// example, may be the version of an image.
func LineOnly[O any](f Flag[O]) Flag[O] { f.NoEnv = true; return f }
