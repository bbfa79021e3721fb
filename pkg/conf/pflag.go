package conf

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// AddTo declares the flags of the group in a set of pflag, which parses and prints
// them. Their values are not stored there: ParseFlags collects them.
func (g FlagGroup[O]) AddTo(set *pflag.FlagSet) {
	for _, f := range g.Flags {
		added := set.VarPF(declaredFlag{f.Def, f.Arg}, f.Name, "", f.usage())
		if f.Arg == "" {
			added.NoOptDefVal = "true" // the value without "="; a flag that has this never takes the next argument
		}
	}
}

// usage returns the help of the flag. pflag appends the default.
func (f Flag[O]) usage() string {
	if f.Repeat {
		return f.Help + "; may be repeated"
	}
	return f.Help
}

// declaredFlag is a pflag.Value of which only the default is used.
type declaredFlag struct{ text, arg string }

// String implements pflag.Value.
func (d declaredFlag) String() string { return d.text }

// Set implements pflag.Value.
func (d declaredFlag) Set(string) error { return nil }

// Type implements pflag.Value. pflag shows it as the name of the value, except for
// "bool".
func (d declaredFlag) Type() string { return cmp.Or(d.arg, "bool") }

// DoubleDashes returns args with two dashes before each flag. Like Go's flag package,
// flannel takes one dash or two, where pflag reads one dash as the start of
// one-letter flags. Values of flags, and what follows "--", stay as they are; so do
// the arguments after the first that is no flag, unless interspersed is true. "-h"
// becomes "--help".
func DoubleDashes(set *pflag.FlagSet, args []string, interspersed bool) []string {
	args = slices.Clone(args)
	for i := 0; i < len(args) && args[i] != "--"; i++ {
		if len(args[i]) < 2 || args[i][0] != '-' {
			if interspersed {
				continue
			}
			break
		}
		name, value, hasValue := strings.Cut(strings.TrimPrefix(args[i][1:], "-"), "=")
		if name == "h" && set.Lookup(name) == nil {
			name = "help"
		}
		args[i] = "--" + name
		if hasValue {
			args[i] += "=" + value
		} else if f := set.Lookup(name); f != nil && f.NoOptDefVal == "" {
			i++ // the next argument is its value
		}
	}
	return args
}

// ExplainFlag returns an error of pflag with the flag's name first, and a suggestion
// instead of an unknown one. Only the flag's own error may quote the value, because it
// may be a secret.
func ExplainFlag(set *pflag.FlagSet, err error) error {
	if name := UnknownFlag(err); name != "" {
		var known []string
		set.VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		return unknownFlag(name, known)
	}
	if syntax, ok := errors.AsType[*pflag.InvalidSyntaxError](err); ok {
		name, _, _ := strings.Cut(strings.TrimPrefix(syntax.GetSpecifiedFlag(), "--"), "=")
		return unknownFlag(name, nil)
	}
	if missing, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		name := missing.GetSpecifiedName()
		arg, _ := pflag.UnquoteUsage(missing.GetFlag())
		return fmt.Errorf("--%s: missing value; use --%s=%s", name, name, arg)
	}
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return fmt.Errorf("--%s: %w", invalid.GetFlag().Name, errors.Unwrap(invalid))
	}
	return err
}

// UnknownFlag returns the name in an error about an unknown flag, else "".
func UnknownFlag(err error) string {
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok {
		return e.GetSpecifiedName()
	}
	return ""
}

// unknownFlag returns the error for an unknown flag. It quotes the name, because a
// terminal would interpret control characters.
func unknownFlag(name string, known []string) error {
	hint := "see --help"
	if near := nearest(name, known); near != "" {
		hint = "did you mean --" + near + "?"
	}
	return fmt.Errorf("--%.60s: unknown flag; %s", strings.Trim(strconv.Quote(name), `"`), hint)
}
