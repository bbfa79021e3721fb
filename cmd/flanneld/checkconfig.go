package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"flannel/backend"
	"flannel/subnet"
	"flannel/subnet/kube"
)

const aboutCheckConfig = `Checks a network configuration as the daemon does, for Linux and for Windows nodes, and changes nothing.
FILE is a JSON document; - is the standard input. Without it, the configuration is the one that the
daemon would use: in etcd, or with --kube-subnet-mgr the file --net-config-path.`

// checkAnswer is the JSON document of check-config.
type checkAnswer struct {
	Source  string          `json:"source"`            // a file, or a description of where it was read
	Systems []checkedSystem `json:"systems"`           // empty if it could not be read
	Problem string          `json:"problem,omitempty"` // the configuration could not be read, or is invalid
}

// checkedSystem is the verdict for the nodes with one operating system.
type checkedSystem struct {
	System   string   `json:"system"` // linux or windows
	Valid    bool     `json:"valid"`
	Backend  string   `json:"backend,omitempty"`
	Networks []string `json:"networks,omitempty"` // of the pods; only the valid ones
	Problems []string `json:"problems,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// checkConfig is the command check-config. Like those of all commands, it declares the flags,
// and what it returns runs when they are parsed, and returns the exit code.
func checkConfig(c *call) func(context.Context) int {
	system := c.flags.String("os", runtime.GOOS, "`system` whose nodes decide the exit status: linux, windows or all; the verdict for the other one is printed, too, with --kube only if the cluster has Windows nodes")
	fromKube := c.flags.Bool("kube", false, "read the ConfigMap --configmap from the Kubernetes API; its address and credentials are those of the daemon's flags")
	configMap := c.flags.String("configmap", "kube-flannel/kube-flannel-cfg", "`namespace/name` of the ConfigMap")
	limit := c.limitFlag("timeout", 10*time.Second, "how long to wait for etcd or the Kubernetes API")
	c.jsonFlag("print one JSON document: source, systems (each with system, valid, backend, networks, problems, warnings), problem")
	return func(ctx context.Context) int {
		if !slices.Contains([]string{"linux", "windows", "all"}, *system) {
			return c.reportUsage(fmt.Errorf("check-config: --os: %.40q is unknown; use linux, windows or all", *system))
		}
		if *fromKube && c.operand != "" {
			return c.reportUsage(fmt.Errorf("check-config: give either %q or --kube", c.operand))
		}
		ctx, cancel := context.WithTimeout(ctx, *limit)
		defer cancel()
		var raw []byte
		var err error
		answer := checkAnswer{Source: c.operand, Systems: []checkedSystem{}}
		switch {
		case *fromKube:
			answer.Source = "ConfigMap " + *configMap
			raw, err = kube.NetConf(ctx, *configMap, *c.Kube.client())
		case c.operand == "-":
			answer.Source = "standard input"
			raw, err = io.ReadAll(c.stdin)
		case c.operand != "":
			raw, err = os.ReadFile(c.operand)
		default:
			answer.Source = netConfName(c.options)
			raw, err = readNetConf(ctx, c.options, c.log)
		}
		if err != nil {
			answer.Problem = err.Error()
			return c.answer(answer, "", fmt.Errorf("check-config: %w", err)) // exitError: not checked; exitNotReady below: invalid
		}
		var text []string
		invalid := "" // the systems of --os for which it is, each after a space
		// Only hasWindows asks the Kubernetes API.
		withWindows := !*fromKube || *system != "linux" || hasWindows(ctx, c.options)
		for _, s := range []string{"linux", "windows"} {
			if s == "windows" && !withWindows {
				continue // nobody has to read what does not concern this cluster
			}
			checked := check(s, raw)
			answer.Systems = append(answer.Systems, checked)
			text = append(text, checked.String())
			if !checked.Valid && (*system == s || *system == "all") {
				invalid += " " + s
			}
		}
		if invalid != "" {
			answer.Problem = "the configuration is invalid for:" + invalid
		}
		exit := c.answer(answer, strings.Join(text, "\n"), nil) // nil: an invalid configuration is an answer, no error
		if exit == exitOK && invalid != "" {
			return exitNotReady
		}
		return exit // exitError: the answer could not be printed
	}
}

// hasWindows reports whether the cluster has Windows nodes; true also if that is not known.
func hasWindows(ctx context.Context, o options) bool {
	names, err := kube.WindowsNodes(ctx, *o.Kube.client())
	return err != nil || len(names) > 0
}

// check checks a raw network configuration for the nodes with one operating system.
func check(system string, raw []byte) checkedSystem {
	// _: the backend's Maker, for the daemon. After an error, config has what was valid, and err a line for each problem.
	config, _, warnings, err := backend.ParseConfig(system, raw)
	c := checkedSystem{System: system, Valid: err == nil, Backend: config.Backend, Warnings: warnings}
	for _, n := range []subnet.Network{config.V4, config.V6} {
		if n.On() {
			c.Networks = append(c.Networks, n.Prefix.String())
		}
	}
	if err != nil {
		c.Problems = strings.Split(err.Error(), "\n")
	}
	return c
}

// String returns the verdict as text for people.
func (c checkedSystem) String() string {
	text := fmt.Sprintf("%s nodes: valid, %s, %s", c.System, c.Backend, strings.Join(c.Networks, ", "))
	if !c.Valid {
		text = c.System + " nodes: invalid"
	}
	for _, p := range c.Problems {
		text += "\n  problem: " + p
	}
	for _, w := range c.Warnings {
		text += "\n  warning: " + w
	}
	return text
}
