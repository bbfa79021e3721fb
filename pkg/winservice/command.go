package winservice

import (
	"context"
	"errors"
	goflag "flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
)

// Usage is the help of the command service.
const Usage = `flanneld as a Windows service. It starts with the system and is restarted when it fails.

  flanneld service install [--json] [--start] [--env NAME=VALUE]... -- [flags of the daemon]
  flanneld service start | stop | status | uninstall [--json]

install checks the flags, and creates the service or changes an existing one. With --start it also
starts it, and restarts a running one if something changed. A service does not get the variables of
this shell: set those that it needs, such as --env NODE_NAME=worker1. Warnings and errors are logged
to the event log (Application, source ` + Name + `), everything to --log-file, by default
` + LogFile + `. --json prints one JSON document: said (the messages), problem.
`

// UsageError is a mistake in the command line.
type UsageError struct{ error }

// Daemon has the settings of the daemon that Command needs.
type Daemon struct {
	Files   []string // all files that flags and variables name
	LogFile string   // "" if none is set
}

// Command installs or controls the Windows service. args are a verb and its
// arguments. read parses flags and variables as the daemon does. Messages for the
// user go to stdout; a mistake in args is a UsageError.
func Command(ctx context.Context, args []string, read func(args, env []string) (Daemon, error), log *slog.Logger, stdout io.Writer) error {
	verb, rest := "", args
	if len(rest) > 0 {
		verb, rest = rest[0], rest[1:]
	}
	var config Config // only install has one
	switch {
	case slices.Contains([]string{"-h", "--help", "-help", "help"}, verb):
		_, err := io.WriteString(stdout, Usage)
		return err
	case !slices.Contains([]string{"install", "uninstall", "start", "stop", "status", "run"}, verb):
		return UsageError{fmt.Errorf("service: unknown verb %.40q; use install, uninstall, start, stop or status, see flanneld service --help", verb)}
	case verb == "install":
		program, err := os.Executable()
		if err != nil {
			return fmt.Errorf("service install: %w", err)
		}
		if config, err = ParseInstall(program, rest, read); errors.Is(err, goflag.ErrHelp) {
			_, err := io.WriteString(stdout, Usage)
			return err
		} else if err != nil {
			return UsageError{fmt.Errorf("service install: %w", err)}
		}
		for _, w := range config.Warnings() {
			log.Warn(w)
		}
	case len(rest) > 0:
		return UsageError{fmt.Errorf("service %s takes no argument %.40q", verb, rest[0])}
	}
	return Control(ctx, verb, config, stdout)
}

// ParseInstall returns the configuration of the service from the arguments of
// install. It rejects flags and variables that the daemon would reject.
func ParseInstall(program string, args []string, read func(args, env []string) (Daemon, error)) (Config, error) {
	var env []string
	flags := goflag.NewFlagSet("", goflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	start := flags.Bool("start", false, "also start it")
	flags.Func("env", "a variable", func(text string) (err error) { env, err = addVariable(env, text); return err })
	if err := flags.Parse(args); err != nil {
		return Config{}, fmt.Errorf("%w; give the daemon's flags after --, as in: flanneld service install -- --kube-subnet-mgr", err)
	}
	args = flags.Args() // what follows "--": the daemon's
	command := append([]string{program}, args...)
	daemon, err := read(args, env)
	problems := []error{err}
	for _, file := range daemon.Files {
		if !rooted.MatchString(file) {
			problems = append(problems, fmt.Errorf("%.100q: give the full path, since a service starts in another directory", file))
		}
	}
	for _, arg := range command {
		if strings.Count(arg, "%") > 1 {
			problems = append(problems, fmt.Errorf("%.100q: Windows expands the text between two %%; set the flag as a variable by --env", arg))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return Config{}, err
	}
	// An explicit empty --log-file means that the user wants no log file.
	if daemon.LogFile == "" && !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(strings.TrimLeft(a, "-"), "log-file=") }) {
		command = append(command, "--log-file="+LogFile)
	}
	return Config{Command: append(command, runVerb...), Env: env, Start: *start}, nil
}

// addVariable adds NAME=VALUE, and removes an earlier variable of that name. Windows
// ignores the case of names.
func addVariable(env []string, text string) ([]string, error) {
	name, _, ok := strings.Cut(text, "=")
	if !ok || name == "" || strings.ContainsAny(text, "\x00") {
		return nil, fmt.Errorf("%.60q is not of the form NAME=VALUE", name)
	}
	env = slices.DeleteFunc(env, func(e string) bool {
		other, _, _ := strings.Cut(e, "=")
		return strings.EqualFold(other, name)
	})
	return append(env, text), nil
}

// rooted matches a Windows path that does not depend on the current directory.
var rooted = regexp.MustCompile(`^([A-Za-z]:)?[/\\]`)
