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

	"flannel/pkg/flags"
	"flannel/pkg/version"
)

// Names of the commands that cobra adds: the last two are for the scripts of shells.
var cobraCommands = []string{"help", "completion", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd}

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

// execute runs one of the commands with the arguments in c.
func execute(ctx context.Context, rows []command, c *call) int {
	exit := exitOK
	root := newRoot(rows, c, &exit)
	root.SetArgs([]string{})
	if c.Command != "" {
		args := c.Args
		if cmd, _, err := root.Find([]string{c.Command}); err == nil && !cmd.DisableFlagParsing && !slices.Contains(cobraCommands, c.Command) {
			args = flags.DoubleDashes(cmd.Flags(), args, true)
		}
		root.SetArgs(append([]string{c.Command}, args...))
	}
	if cmd, err := root.ExecuteContextC(ctx); err != nil {
		return c.reportUsage(fmt.Errorf("%s: %w; see %s --help", cmd.Name(), err, cmd.CommandPath()))
	}
	return exit
}

// newRoot returns the commands as cobra parses, describes and completes them. The
// command that runs sets exit.
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
// its own.
func (row command) cobra(c call, exit *int) *cobra.Command {
	cmd := &cobra.Command{
		Use: strings.TrimRight(row.name+" [flags] "+row.operand, " "), Short: row.help, Long: cmp.Or(row.about, strings.ToUpper(row.help[:1])+row.help[1:]+"."), Example: row.example,
		Hidden: row.system != "" && row.system != runtime.GOOS, DisableFlagsInUseLine: true, Args: noArguments,
	}
	if row.run != nil {
		cmd.DisableFlagParsing, cmd.Args = true, nil
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			c.Args = args
			*exit = row.run(cmd.Context(), &c)
			return nil
		}
		return cmd
	}
	c.flags = cmd.Flags()
	run := row.flags(&c)
	cmd.InitDefaultHelpFlag()
	if row.operand != "" {
		cmd.Args = atMostOne
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
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

func atMostOne(cmd *cobra.Command, args []string) error {
	return noArguments(cmd, args[min(len(args), 1):])
}

func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %.40q", args[0])
	}
	return nil
}

// explainFlag explains cobra's error about a command's flag. A flag of the daemon is
// known, but belongs before the command's name.
func explainFlag(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	if name := flags.UnknownName(err); name != "" && cmd.Root().Flags().Lookup(name) != nil {
		return fmt.Errorf("--%s: put it before %s, because it is a flag of the daemon", name, cmd.Name())
	}
	return flags.Explain(cmd.Flags(), err)
}

// helpCommand returns the command help. Unlike cobra's own it fails for an unknown
// command.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [command]", Short: "show the help of a command", DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				found, rest, err := cmd.Root().Find(args)
				if err != nil || len(rest) > 0 {
					return unknownCommand(cmd.Root(), args[0])
				}
				cmd = found
			} else {
				cmd = cmd.Root()
			}
			cmd.HelpFunc()(cmd, nil)
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			for _, c := range cmd.Root().Commands() {
				if listed(c) && len(args) == 0 {
					names = append(names, c.Name())
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// unknownCommand returns an error for a name that no command has, with similar names,
// or all names if there are none.
func unknownCommand(root *cobra.Command, name string) error {
	if near := root.SuggestionsFor(name); len(near) > 0 {
		return fmt.Errorf("unknown command %.60q; did you mean %s?", name, strings.Join(near, " or "))
	}
	var names []string
	for _, c := range root.Commands() {
		if listed(c) {
			names = append(names, c.Name())
		}
	}
	return fmt.Errorf("unknown command %.60q; use one of %s", name, strings.Join(names, ", "))
}

// listed reports whether the help lists a command: if it is meant for this system.
// cobra does not count help.
func listed(c *cobra.Command) bool { return c.IsAvailableCommand() || c.Name() == "help" }

// showVersion is the command version.
func showVersion(c *call) func(context.Context) int {
	return func(context.Context) int { return c.answer(nil, version.String(), nil) }
}
