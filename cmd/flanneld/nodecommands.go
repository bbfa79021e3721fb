package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"flannel/pkg/windows/service"
)

const aboutNode = `Makes this machine a Windows node of a Kubernetes cluster, and undoes that: what start.ps1, stop.ps1, reset.ps1
and kube-proxy.ps1 call, with their parameters as flags. Without a DaemonSet, on a machine that has containerd.`

const aboutNodeStart = `Starts kubelet, flanneld and kube-proxy, after what they need: the CNI plugins, both configurations, and the
adapter's virtual switch, during whose creation the network may be down for half a minute. It can be run again:
it skips what is done already, and says what stops it. It downloads nothing: windows-quickstart.md lists the files
that --base-dir must have.

--network-mode and --cluster-cidr are used only if the file --net-conf does not exist. Without --management-ip, the
flags that are not given have the values of the last run, which are in flannel-node.json in --base-dir.`

const aboutNodeStop = `Stops what node start started, and the service flanneld, if flanneld service install created it (as node start
--services does). Services that others installed run on. The network stays in place.`

const aboutNodeReset = `Removes what node start created, the network included: the host has no address for half a minute, and pods of this
node lose their network, so drain it first. Programs, logs, the kubeconfig, the network configuration, services
that others installed, and networks of others stay.`

const aboutNodeProxy = `Runs kube-proxy in the foreground, for a HostProcess container. It waits until flanneld is ready, passes the flags
for this node's network to kube-proxy, such as the source VIP, and restarts kube-proxy when they change. It ends when
kube-proxy ends, with its exit status, or if flanneld is not ready in time.`

// nodeCommands returns the commands below node.
func nodeCommands() []command {
	return []command{
		{name: "start", flags: startNode, about: aboutNodeStart, windows: true, help: "make this machine a node, or start its components again",
			example: `  flanneld node start --management-ip=192.168.1.10 --network-mode=overlay --interface-name="Ethernet 2"`},
		{name: "stop", flags: stopNode, about: aboutNodeStop, windows: true, help: "stop what node start started, and leave the network in place"},
		{name: "reset", flags: resetNode, about: aboutNodeReset, windows: true, help: "remove what node start created, and its network"},
		{name: "kube-proxy", flags: proxyNode, about: aboutNodeProxy, windows: true, help: "run kube-proxy with the flags for this node's network",
			exits: map[int]string{exitError: "flanneld is not ready in time, or an error; else the status of kube-proxy"}},
	}
}

// Names of components; flanneld's is service.Name. boot is a node start that goes on until it
// succeeds.
const (
	kubelet   = "kubelet"
	kubeProxy = "kube-proxy"
	boot      = "node-start"
)

// settingsName is the file in which node start keeps its flags.
const settingsName = "flannel-node.json"

// say prints what a command below node does, with the date and time: flannel-node.log has the runs of several boots.
func (c *call) say(text string) {
	fmt.Fprintf(c.stdout, "%s  %s\n", time.Now().Format(time.DateTime), text) //nolint:errcheck // the exit status says how it ended
}

// baseDirFlag declares --base-dir.
func (c *call) baseDirFlag() *string {
	return c.flags.String("base-dir", `C:\k`, "`directory` of the programs and of what node start keeps")
}

// nodeTask returns a command below node that an administrator runs, and that fails with
// an error. It makes baseDir absolute before it calls do. A flagMistake has the exit status
// of a wrong command line.
func (c *call) nodeTask(name string, baseDir *string, do func(context.Context) error) func(context.Context) int {
	return func(ctx context.Context) int {
		err := service.RequireAdministrator()
		if err == nil {
			*baseDir, err = fullPath(*baseDir)
		}
		if err == nil {
			err = do(ctx)
		}
		if err != nil {
			err = fmt.Errorf("node %s: %w", name, err)
		}
		if _, mistake := errors.AsType[flagMistake](err); mistake {
			return c.reportUsage(err)
		}
		return c.reportError(err)
	}
}

// components returns the components of the node with the settings s.
func (c *call) components(baseDir string, s nodeSettings) service.Components {
	return service.Components{BaseDir: baseDir, LogDir: s.LogDir, Out: sayWriter{c}}
}

// sayWriter says each line that is written.
type sayWriter struct{ c *call }

// Write implements io.Writer.
func (w sayWriter) Write(text []byte) (int, error) {
	w.c.say(strings.TrimSuffix(string(text), "\n"))
	return len(text), nil
}

var _ io.Writer = sayWriter{}

// flanneld runs a command of flanneld in this process, as one would type it, with the
// variables environ in addition to those of this process. It returns an error if the
// command's exit status is not 0. The reason is printed by then.
func (c *call) flanneld(ctx context.Context, environ []string, args ...string) error {
	c.say("flanneld " + quoted(args))
	p := c.process
	p.args, p.environ = args, append(append([]string{}, c.environ...), environ...)
	if code := run(ctx, p); code != exitOK {
		return fmt.Errorf("flanneld ended with status %d; the reason is above", code)
	}
	return ctx.Err()
}

// quoted joins arguments to a line for people.
func quoted(args []string) string {
	words := make([]string, len(args))
	for i, arg := range args {
		if words[i] = arg; arg == "" || strings.ContainsAny(arg, ` "`) {
			words[i] = `"` + arg + `"`
		}
	}
	return strings.Join(words, " ")
}

// fullPath returns an absolute path: services start in another directory. "" stays.
func fullPath(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	if len(path) == 2 && path[1] == ':' { // C:\ without the backslash that scripts remove
		path += string(filepath.Separator)
	}
	return filepath.Abs(path)
}

// stopNode is the command node stop.
func stopNode(c *call) func(context.Context) int {
	baseDir := c.baseDirFlag()
	return c.nodeTask("stop", baseDir, func(ctx context.Context) error {
		if err := c.stopComponents(ctx, *baseDir); err != nil {
			return err
		}
		return c.stopDaemonService(ctx)
	})
}

// stopComponents stops what startNode started, in reverse order. A node start that
// retries would start them again, and is stopped first. The service of flanneld, which
// Components did not create, runs on.
func (c *call) stopComponents(ctx context.Context, baseDir string) error {
	components := c.components(baseDir, nodeSettings{}) // without the settings: only a start needs LogDir
	for _, name := range []string{boot, kubeProxy, service.Name, kubelet} {
		if err := components.Stop(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// daemonService reports whether there is a service flanneld, and whether flanneld service install created it. If not, it is
// another tool's, such as nssm's.
func daemonService() (exists, own bool, err error) {
	command, _, err := service.Settings()
	if errors.Is(err, fs.ErrNotExist) {
		return false, false, nil
	}
	_, own = service.Arguments(command)
	return err == nil, own, err
}

// leavesService prints that the service flanneld of another tool is left as it is.
func (c *call) leavesService() {
	c.say("the service " + service.Name + " is left as it is: flanneld service install did not create it")
}

// stopDaemonService stops the service flanneld, if there is one that flanneld service install created.
func (c *call) stopDaemonService(ctx context.Context) error {
	switch exists, own, err := daemonService(); {
	case err != nil || !exists:
		return err
	case !own:
		c.leavesService()
		return nil
	}
	return c.flanneld(ctx, nil, "service", "stop")
}

// flagMistake is an error of the flags, of which nothing was kept or started.
type flagMistake struct{ error }

// Unwrap returns the error.
func (m flagMistake) Unwrap() error { return m.error }
