package extension

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"flannel/pkg/dataplane"
)

// command is a command of the network configuration.
type command struct {
	key   string   // in the configuration
	line  string   // program and arguments, separated by white space; "": nothing is run
	env   []string // "NAME=value", beside flanneld's own
	stdin string

	subnet netip.Prefix // of the peer, for the log
}

// id is different for commands that do different things.
func (c command) id() string { return fmt.Sprintf("%q %q %q", c.line, c.env, c.stdin) }

// commandError is the error of a command that failed, or was killed.
type commandError struct {
	Key     string // in the configuration: "SubnetAddCommand"
	Program string
	Output  string // the end of what it printed, in one line
	Err     error  // *exec.ExitError, context.DeadlineExceeded or that of starting it
}

func (e *commandError) Error() string {
	text := fmt.Sprintf("%s (%.80s): %v", e.Key, e.Program, e.Err)
	if e.Output != "" {
		text += ": " + e.Output
	}
	return text
}

// Unwrap returns the error of the process.
func (e *commandError) Unwrap() error { return e.Err }

// Cause is the value of the attribute cause in the log.
func (e *commandError) Cause() string { return causeFailed }

// sameFailure returns the error of the last try if a command has failed in the same way
// again, else err. What a program prints may have PIDs, ports or times, with which each
// try would look like another problem, and would be reported.
func sameFailure(last, err error) error {
	l, ok1 := errors.AsType[*commandError](last)
	e, ok2 := errors.AsType[*commandError](err)
	if ok1 && ok2 && l.Key == e.Key && l.Err.Error() == e.Err.Error() &&
		numbers.ReplaceAllString(l.Output, "0") == numbers.ReplaceAllString(e.Output, "0") {
		return last
	}
	return err
}

// numbers is what differs between two tries.
var numbers = regexp.MustCompile("[0-9]+")

// maxOutput limits the output of PreStartup, in bytes: it becomes a part of the
// lease, and stores reject large ones. Of other output, no more is kept.
const maxOutput = 2048

// killDelay is how long a command that was killed, or whose children keep its
// output open, is waited for.
const killDelay = time.Second

// limiter returns the context of a command, and what releases it.
type limiter func(context.Context, command) (context.Context, context.CancelFunc)

// limited is the limiter outside of tests.
func limited(ctx context.Context, _ command) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, timeLimit)
}

// run runs a command to its end, on the goroutine of Dataplane.work, and returns what it
// printed without white space around it. The error is a *commandError. No shell is
// involved: the line is split at white space, and then $NAME and ${NAME} in each word are
// replaced from the command's environment, so that no value becomes several words. When
// the context ends, the command is killed with all processes that it started.
func run(ctx context.Context, c command, m *marks) (string, error) {
	words := strings.Fields(c.line)
	if len(words) == 0 {
		return "", nil
	}
	env := environment(c.env)
	program := words[0]
	for i, word := range words {
		words[i] = os.Expand(word, func(name string) string { return valueOf(env, name) })
	}
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	output := &start{}
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, strings.NewReader(c.stdin), output, output
	cmd.WaitDelay = killDelay
	err := runGroup(cmd, m)
	switch {
	case err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		err = fmt.Errorf("killed after %s: %w", timeLimit, context.DeadlineExceeded)
	case errors.Is(err, exec.ErrWaitDelay): // it ended, and left a process behind, which is its right
		err = nil
	}
	text := string(bytes.TrimSpace(output.text))
	if err == nil && c.key == "PreStartupCommand" && output.more {
		err = fmt.Errorf("it printed more than the %d bytes that a lease has room for", maxOutput)
	}
	if err != nil {
		return "", &commandError{Key: c.key, Program: program, Output: lastPart(text), Err: err}
	}
	return text, nil
}

// start keeps the start of what is written to it.
type start struct {
	text []byte
	more bool // there was more
}

// Write implements io.Writer.
func (s *start) Write(p []byte) (int, error) {
	room := maxOutput - len(s.text)
	s.more = s.more || len(p) > room
	s.text = append(s.text, p[:min(len(p), room)]...)
	return len(p), nil
}

// lastPart returns the end of an output for an error.
func lastPart(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	return strings.ToValidUTF8(text[max(0, len(text)-200):], "")
}

// environment returns flanneld's own variables, without those that are flags, which
// may be secrets, and the command's.
func environment(more []string) (env []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(strings.ToUpper(v), "FLANNELD_") {
			env = append(env, v)
		}
	}
	return append(env, more...)
}

// valueOf returns the value of a variable; the last one counts, as in exec.Cmd.
func valueOf(env []string, name string) (value string) {
	for _, v := range env {
		if n, text, _ := strings.Cut(v, "="); n == name {
			value = text
		}
	}
	return value
}

// ends returns the variables for a node. Those of a family that is off are empty.
func ends(v4, v6 dataplane.Family) []string {
	var env []string
	add := func(subnet, ip string, e dataplane.Family) {
		if e == (dataplane.Family{}) {
			env = append(env, subnet+"=", ip+"=")
			return
		}
		env = append(env, subnet+"="+e.Subnet.String(), ip+"="+e.PublicIP.String())
	}
	add("SUBNET", "PUBLIC_IP", v4)
	add("IPV6SUBNET", "PUBLIC_IPV6", v6)
	return env
}

// join returns a list with one more element in front.
func join(first string, more []string) []string { return append([]string{first}, more...) }
