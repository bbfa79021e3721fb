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
const Usage = `flanneld as a Windows service, which starts with the system and is restarted when it fails.

  flanneld service install [--json] [--start] [--env NAME=VALUE]... -- [flags of the daemon]
  flanneld service start | stop | status | uninstall [--json]

install checks the flags, and changes a service that is there already. With --start it runs then,
and one that runs is started anew if something changed. Variables of this shell do not reach a
service: give it those that it needs, such as --env NODE_NAME=worker1. Warnings and errors go to
the event log (Application, source ` + Name + `), everything to --log-file, by default
` + LogFile + `. With --json what is said is one JSON document: said, problem.
`

// UsageError is one of the command line.
type UsageError struct{ error }

// Daemon is what flags and variables that a service is to have mean to the daemon.
type Daemon struct {
	Files   []string // that they name
	LogFile string   // "" if they name none
}

// Command makes and controls the Windows service as args say: a verb and what goes with it. read is how the daemon
// understands its own flags and variables. What Command did is said on stdout; a mistake in args is a UsageError.
func Command(ctx context.Context, args []string, read func(args, env []string) (Daemon, error), log *slog.Logger, stdout io.Writer) error {
	verb, rest := "", args
	if len(rest) > 0 {
		verb, rest = rest[0], rest[1:]
	}
	var config Config
	switch {
	case slices.Contains([]string{"-h", "--help", "-help", "help"}, verb):
		_, err := io.WriteString(stdout, Usage)
		return err
	case !slices.Contains([]string{"install", "uninstall", "start", "stop", "status", "run"}, verb):
		return UsageError{fmt.Errorf("service: %.40q is none of install, uninstall, start, stop and status; see flanneld service --help", verb)}
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

// ParseInstall makes the service's configuration of the arguments of install; what the daemon would refuse is refused.
func ParseInstall(program string, args []string, read func(args, env []string) (Daemon, error)) (Config, error) {
	var env []string
	flags := goflag.NewFlagSet("", goflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	start := flags.Bool("start", false, "start it, too")
	flags.Func("env", "a variable", func(text string) (err error) { env, err = addVariable(env, text); return err })
	if err := flags.Parse(args); err != nil {
		return Config{}, fmt.Errorf("%w; the daemon's flags come after --, as in: flanneld service install -- --kube-subnet-mgr", err)
	}
	args = flags.Args()
	daemon, err := read(args, env)
	problems := []error{err}
	for _, file := range daemon.Files {
		if !rooted(file) {
			problems = append(problems, fmt.Errorf("%.100q: a service starts in a folder of its own; give the whole path", file))
		}
	}
	for _, arg := range append([]string{program}, args...) {
		if strings.Count(arg, "%") > 1 {
			problems = append(problems, fmt.Errorf("%.100q: Windows replaces what stands between two %%; give the flag as a variable by --env", arg))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return Config{}, err
	}
	command := append([]string{program}, args...)
	// An empty --log-file is somebody's wish.
	if daemon.LogFile == "" && !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(strings.TrimLeft(a, "-"), "log-file=") }) {
		command = append(command, "--log-file="+LogFile)
	}
	config := New(append(command, runVerb...), env)
	config.Start = *start
	return config, nil
}

// addVariable adds NAME=VALUE in place of an earlier one of that name, which Windows takes without regard to case.
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

// rootedForm is a Windows path that does not depend on the current folder.
var rootedForm = regexp.MustCompile(`^([A-Za-z]:)?[/\\]`)

func rooted(path string) bool { return rootedForm.MatchString(path) }
