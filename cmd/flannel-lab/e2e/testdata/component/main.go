// Command component stands for kubelet.exe and kube-proxy.exe on a Windows node. It writes its arguments to
// <program>.args and runs until it is ended. A feature gate Broken ends it at once. It prints its version only when there
// is no file <program>.hold.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

func main() {
	args := os.Args[1:]
	switch {
	case slices.Equal(args, []string{"--version"}):
		printVersion()
	case strings.Contains(strings.Join(args, " "), "Broken=true"):
		os.Exit(7)
	default:
		if err := run(args); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func printVersion() {
	for {
		if _, err := os.Stat(os.Args[0] + ".hold"); err != nil {
			fmt.Println("Kubernetes v1.32.1")
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func run(args []string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	raw, err := json.Marshal(args)
	if err != nil {
		return err
	}
	if err := os.WriteFile(program+".new", raw, 0o644); err != nil {
		return err
	}
	if err := os.Rename(program+".new", program+".args"); err != nil {
		return err
	}
	for {
		time.Sleep(time.Hour)
	}
}
