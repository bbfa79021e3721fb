// This file makes cobra's tree of commands from the table of commands (commands.go).

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"flannel/pkg/conf"
	"flannel/pkg/version"
)

// Names of the commands that cobra adds: the last two are for the scripts of shells.
var cobraCommands = []string{"help", "completion", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd}

// commandNames returns the names that the command line accepts as a command.
func commandNames() (names []string) {
	for _, c := range commands() {
		names = append(names, c.name)
	}
	return append(names, cobraCommands...)
}

// runCommand runs the command o.Command, or prints the daemon's help if it is "".
// parseOptions has checked that it exists.
func runCommand(ctx context.Context, o options, p process, log *slog.Logger) int {
	return execute(ctx, commands(), &call{options: o, process: p, log: log})
}

// execute runs one of the commands with the arguments in c, and returns the exit code.
func execute(ctx context.Context, rows []command, c *call) int {
	exit := exitOK
	root := newRoot(rows, c, &exit)
	root.SetArgs([]string{})
	if c.Command != "" {
		args := c.Args // cobra's own commands take them as they are
		if cmd, _, err := root.Find([]string{c.Command}); err == nil && !slices.Contains(cobraCommands, c.Command) {
			args = doubleDashes(cmd, args)
		}
		root.SetArgs(append([]string{c.Command}, args...))
	}
	if cmd, err := root.ExecuteContextC(ctx); err != nil {
		return c.reportUsage(fmt.Errorf("%s: %w; see %s --help", nameOf(cmd), err, cmd.CommandPath()))
	}
	return exit
}

// doubleDashes is conf.DoubleDashes for a command and those below it: each has flags of
// its own, which end before the name of the next.
func doubleDashes(cmd *cobra.Command, args []string) []string {
	if !cmd.HasSubCommands() {
		return conf.DoubleDashes(cmd.Flags(), args, true)
	}
	args = conf.DoubleDashes(cmd.Flags(), args, false)
	if i := slices.IndexFunc(args, func(arg string) bool { return !strings.HasPrefix(arg, "-") }); i >= 0 {
		if below, _, err := cmd.Find(args[i : i+1]); err == nil && below != cmd {
			args = append(args[:i+1], doubleDashes(below, args[i+1:])...)
		}
	}
	return args
}

// nameOf returns the words of a command as a user gives them: "service install".
func nameOf(cmd *cobra.Command) string {
	if !cmd.HasParent() {
		return cmd.Name()
	}
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
}

// newRoot returns the commands of rows as cobra parses, describes and completes them. The
// command that runs sets exit to its exit code; an error of cobra's is a mistake in the
// command line. c has what all of them share. The daemon's flags are only declared here, for
// help and completion: parseOptions has parsed them.
func newRoot(rows []command, c *call, exit *int) *cobra.Command {
	root := &cobra.Command{
		Use: "flanneld", Short: "network daemon for the pods of a cluster", Long: aboutDaemon,
		SilenceErrors: true, SilenceUsage: true, DisableFlagsInUseLine: true, TraverseChildren: true, SuggestionsMinimumDistance: 2,
	}
	for _, group := range flagTable() {
		group.AddTo(root.Flags())
	}
	root.SetOut(c.stdout)
	root.SetErr(c.stderr)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		if cmd.HasParent() && cmd.HasSubCommands() && cmd.Flags().NArg() > 0 { // service no-such --help
			*exit = c.reportUsage(fmt.Errorf("%s: %w", nameOf(cmd), unknownCommand(cmd, cmd.Flags().Arg(0))))
			return
		}
		*exit = c.reportError(printHelp(c.stdout, cmd, rows, c.columns()))
	})
	root.SetFlagErrorFunc(explainFlag)
	for _, row := range rows {
		root.AddCommand(row.cobra(*c, exit))
	}
	root.SetHelpCommand(helpCommand())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	if cmd, _, err := root.Find([]string{"completion"}); err == nil {
		cmd.Short = "print a script that completes commands and flags in a shell"
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() } // else it has no errors
	}
	return root
}

// cobra returns the command for cobra. c is a copy, because each command has flags of
// its own: row.flags declares them at once, and run is called when they are parsed.
func (row command) cobra(c call, exit *int) *cobra.Command {
	cmd := &cobra.Command{
		Use: row.name, Short: row.help, Long: cmp.Or(row.about, strings.ToUpper(row.help[:1])+row.help[1:]+"."), Example: row.example,
		Hidden: row.hidden || row.system != "" && row.system != runtime.GOOS, DisableFlagsInUseLine: true, SuggestionsMinimumDistance: 2,
	}
	if row.below != nil {
		cmd.InitDefaultHelpFlag()
		cmd.Use += " <command>"
		for _, below := range row.below {
			cmd.AddCommand(below.cobra(c, exit))
		}
		cmd.RunE = func(cmd *cobra.Command, args []string) error { // cobra has found no command below for args
			return unknownCommand(cmd, strings.Join(args[:min(len(args), 1)], "")) // the first argument; "": there is none
		}
		return cmd
	}
	cmd.Use = strings.TrimRight(row.name+" [flags] "+row.operand, " ")
	c.flags = cmd.Flags()
	run := row.flags(&c) // &c: RunE below sets operand and passed in the same copy
	cmd.InitDefaultHelpFlag()
	cmd.Args = noArguments
	switch {
	case row.passes:
		cmd.Use += " -- [flags of the daemon]"
		cmd.Args, cmd.ValidArgsFunction = onlyPassed, completeDaemonFlags
		cmd.SetFlagErrorFunc(explainPassed)
	case row.operand != "":
		cmd.Args = atMostOne
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if row.passes {
			c.passed = args
		} else if len(args) > 0 {
			c.operand = args[0]
		}
		// After parsing, so that --help works on every system.
		if row.windows && runtime.GOOS != "windows" {
			*exit = c.fail(fmt.Errorf("%s: only needed on Windows, not on %s", row.name, runtime.GOOS))
		} else {
			*exit = run(cmd.Context())
		}
		return nil
	}
	return cmd
}

// atMostOne, noArguments and onlyPassed are a command's Args: they check what follows its
// flags.
func atMostOne(cmd *cobra.Command, args []string) error {
	return noArguments(cmd, args[min(len(args), 1):])
}

// noArguments accepts no arguments.
func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %.40q", args[0])
	}
	return nil
}

// onlyPassed accepts arguments after "--" alone.
func onlyPassed(cmd *cobra.Command, args []string) error {
	before := args
	if n := cmd.ArgsLenAtDash(); n >= 0 {
		before = args[:n]
	}
	return hintPassed(noArguments(cmd, before))
}

// explainPassed is explainFlag for a command that passes on flags of the daemon: one
// of them before "--" is the likely mistake.
func explainPassed(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	if name := conf.UnknownFlag(err); cmd.Root().Flags().Lookup(name) != nil {
		return hintPassed(fmt.Errorf("--%s is a flag of the daemon", name))
	}
	return hintPassed(conf.ExplainFlag(cmd.Flags(), err))
}

// hintPassed adds to an error where flags of the daemon belong; nil stays nil.
func hintPassed(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w; give the daemon's flags after --, as in: %s", err, serviceExample)
}

// completeDaemonFlags completes what follows after "--".
func completeDaemonFlags(cmd *cobra.Command, _ []string, part string) (names []string, _ cobra.ShellCompDirective) {
	for _, group := range flagTable() {
		for _, f := range group.Flags {
			if name := "--" + f.Name; cmd.ArgsLenAtDash() >= 0 && strings.HasPrefix(name, part) {
				names = append(names, name)
			}
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// explainFlag explains cobra's error about a command's flag. A flag of the daemon is
// known, but belongs before the command's name.
func explainFlag(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	name := conf.UnknownFlag(err)
	switch {
	case cmd.Parent() == cmd.Root() && cmd.HasSubCommands():
		if cmd.Flags().NArg() > 0 { // the flag may be one of the command that was meant
			return unknownCommand(cmd, cmd.Flags().Arg(0))
		}
		for _, below := range cmd.Commands() {
			if below.Flags().Lookup(name) != nil {
				return fmt.Errorf("--%s: put it after the command, as in: %s --%s", name, below.CommandPath(), name)
			}
		}
	case cmd.Parent() == cmd.Root() && cmd.Root().Flags().Lookup(name) != nil:
		return fmt.Errorf("--%s: put it before %s, because it is a flag of the daemon", name, cmd.Name())
	}
	return conf.ExplainFlag(cmd.Flags(), err)
}

// helpCommand returns the command help. Unlike cobra's own it fails for an unknown
// command.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [command]", Short: "show the help of a command", DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			found, rest, _ := cmd.Root().Find(args)
			switch {
			case len(rest) == 0:
				found.HelpFunc()(found, nil)
				return nil
			case found.HasSubCommands():
				return unknownCommand(found, rest[0])
			}
			return noArguments(found, rest)
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			found, rest, _ := cmd.Root().Find(args)
			if len(rest) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return namesBelow(found), cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// unknownCommand returns an error for a name that no command below parent has, with
// similar names, or all names if there are none. "" stands for no name.
func unknownCommand(parent *cobra.Command, name string) error {
	if name == "" {
		return fmt.Errorf("missing command; use one of %s", strings.Join(namesBelow(parent), ", "))
	}
	if near := parent.SuggestionsFor(name); len(near) > 0 {
		return fmt.Errorf("unknown command %.60q; did you mean %s?", name, strings.Join(near, " or "))
	}
	return fmt.Errorf("unknown command %.60q; use one of %s", name, strings.Join(namesBelow(parent), ", "))
}

// namesBelow returns the names of the commands that the help of parent lists.
func namesBelow(parent *cobra.Command) (names []string) {
	for _, c := range parent.Commands() {
		if listed(c) {
			names = append(names, c.Name())
		}
	}
	return names
}

// listed reports whether the help lists a command: if it is meant for this system.
// cobra does not count help.
func listed(c *cobra.Command) bool { return c.IsAvailableCommand() || c.Name() == "help" }

// showVersion is the command version.
func showVersion(c *call) func(context.Context) int {
	return func(context.Context) int { return c.answer(nil, version.String(), nil) }
}
