package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"

	"flannel/pkg/hns/hnstest"
)

// hnsMain runs a simulated Windows machine for programs under Wine, which find it by their environment:
//
//	flannel-lab hns [options]               until it is told to stop
//	flannel-lab hns [options] -- PROGRAM…   as long as the program runs
//
// It is no command for people: the tests start it.
func hnsMain(ctx context.Context, args []string) (int, error) {
	f := flag.NewFlagSet("flannel-lab hns", flag.ContinueOnError)
	listen := f.String("listen", "127.0.0.1:0", "`address` for the DLLs and for hnstest.Dial")
	kernel := f.Bool("kernel", false, "play the machine in this network namespace, with real devices")
	knobs := f.String("knobs", "", "`JSON` of hnstest.Knobs")
	if err := f.Parse(args); err != nil {
		return 2, err
	}
	m := hnstest.New()
	if *kernel {
		var err error
		if m, err = hnstest.NewKernel(); err != nil {
			return 1, err
		}
	}
	defer m.Close()
	if *knobs != "" {
		var err error
		if m.Turn(func(k *hnstest.Knobs) { err = json.Unmarshal([]byte(*knobs), k) }); err != nil {
			return 2, fmt.Errorf("knobs: %w", err)
		}
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return 1, err
	}
	defer l.Close()
	if f.NArg() > 0 {
		go m.Serve(l)
		return beside(ctx, l.Addr().String(), f.Args())
	}
	context.AfterFunc(ctx, func() { l.Close() })
	return 0, m.Serve(l)
}

// beside runs a program and returns its status. The program gets the signals of the terminal itself; what ends us alone
// ends it too.
func beside(ctx context.Context, address string, command []string) (int, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "FLANNEL_HNS="+address)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}
