package main

import (
	"context"
	"errors"
	goflag "flag"
	"fmt"
	"io"
	"time"

	"flannel/pkg/status"
)

const aboutAcceptWithdrawal = `flanneld accept-withdrawal [flags]

When the store loses more than max(3, 20 %) of the peers within --retain-peers, or lacks them when the daemon starts, the
daemon retains them for that long: nobody may have meant it. If they are gone for good, this lets them go at once, on this node. If this node's own lease
was withdrawn with them, the daemon ends.

`

// acceptWithdrawal is the command that lets retained peers go.
func acceptWithdrawal(ctx context.Context, o options, stdout, stderr io.Writer) int {
	var flags goflag.FlagSet
	asJSON := flags.Bool("json", false, "print one JSON document: dropped, the number of peers; without an answer: ready, problem")
	timeout := limitFlag(&flags, "timeout", 5*time.Second, "how long to wait for the `answer`")
	if done, code := parseCommand(&flags, aboutAcceptWithdrawal, o, stdout, stderr); done {
		return code
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	done, err := status.Accept(ctx, status.Socket(o.SubnetFile))
	if err != nil {
		return notAnswered(stdout, stderr, *asJSON, err)
	}
	text := fmt.Sprintf("%d retained peers are let go", done.Dropped)
	if done.Dropped == 0 {
		text = "no peer was retained"
	}
	return answer(stdout, stderr, *asJSON, done, text, nil)
}

// notAnswered tells that the daemon could not be asked, and why.
func notAnswered(stdout, stderr io.Writer, asJSON bool, err error) int {
	exit := answer(stdout, stderr, asJSON, waited{false, problem(err)}, "", err)
	switch {
	case errors.Is(err, status.ErrNotRunning):
		return exitNotRunning
	case errors.Is(err, status.ErrNoAnswer):
		return exitNoAnswer
	}
	return exit
}
