package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// A pod of a Windows node is an HNS endpoint in an HNS namespace (a compartment),
// created by the real plugins in Wine. No processes run in it. It has no network
// namespace of Linux, so its Namespaces are those of the node, with the pod's
// address as the source of pings (From). The simulated machine gives the node the
// pod's address, so that pings to the pod are answered.

// makeCompartment creates the HNS namespace, as containerd does before it calls
// the plugins.
func (p *Pod) makeCompartment(context.Context) error {
	p.netns = fmt.Sprintf("%08x-0000-4000-8000-%012x", rand.Uint32(), rand.Uint64()&(1<<48-1)) // a random GUID
	handle, err := p.Node.Windows.Call("HcnCreateNamespace", p.netns,
		`{"Type":"Host","SchemaVersion":{"Major":2,"Minor":0}}`)
	if err != nil {
		return err
	}
	_, err = p.Node.Windows.Call("HcnCloseNamespace", handle)
	return err
}

func (p *Pod) deleteCompartment() error {
	_, err := p.Node.Windows.Call("HcnDeleteNamespace", p.netns)
	return err
}

// joinWindows calls ADD, and sets the pod's Namespaces.
func (p *Pod) joinWindows(ctx context.Context) error {
	err := p.Node.Do(func() error { return p.add(ctx) })
	if err != nil {
		// On an L2Bridge network the first address that host-local assigns is
		// taken by the host's endpoint. Kubelet would delete the pod and retry.
		err = p.Node.Do(func() error { return errors.Join(p.del(ctx), p.add(ctx)) })
	}
	if err != nil {
		return err
	}
	p.Namespaces = p.Node.Namespaces
	p.From = p.IP4
	return nil
}

// services is the prefix of the cluster's Service addresses.
const services = "10.96.0.0/12"

// writeWindowsConf runs `flanneld.exe cni-conf`, as users do, which writes the
// CNI configuration for flannel's network. It does nothing if another file
// comes first, because runtimes would use that one.
func (n *Node) writeWindowsConf(ctx context.Context) error {
	if files, err := n.confFiles(); err != nil || len(files) > 0 && files[0] != conflistPath {
		return err
	}
	out, err := n.RunProgram(ctx, n.lab.opts.flanneldExe(),
		append(n.Args(), "cni-conf", "--to="+n.path(conflistPath), "--service-cidr="+services,
			"--management-ip="+n.IP4.String(), "--force")...)
	if err == nil && out.Status != 0 {
		err = fmt.Errorf("flanneld.exe cni-conf exited with status %d: %s", out.Status, out.Stderr)
	}
	return err
}

// inWine implements invoke.Exec, by which libcni runs plugins, for Windows programs.
type inWine struct{ node *Node }

func (inWine) FindInPath(plugin string, paths []string) (string, error) {
	return filepath.Join(paths[0], plugin+".exe"), nil
}

func (inWine) Decode(answer []byte) (version.PluginInfo, error) {
	return new(version.PluginDecoder).Decode(answer)
}

// ExecPlugin runs a plugin in Wine with the CNI variables of environ, and
// returns its stdout. An error that the plugin reports as JSON is returned as
// *types.Error. The other variables of environ are those of this process, and are
// left out.
func (w inWine) ExecPlugin(ctx context.Context, plugin string, stdin []byte, environ []string) ([]byte, error) {
	cmd := w.node.Windows.program(plugin)
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		switch {
		case name == "CNI_PATH":
			cmd.Env = append(cmd.Env, name+`=Z:`+strings.ReplaceAll(value, "/", `\`)) // Wine's Z: is the Unix root
		case strings.HasPrefix(name, "CNI_"):
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := w.node.runToEnd(ctx, cmd)
	if err != nil {
		return nil, err
	}
	if out.Status != 0 {
		e := &types.Error{}
		if json.Unmarshal([]byte(out.Stdout), e) == nil && e.Msg != "" {
			return nil, e
		}
		return nil, fmt.Errorf("%s exited with status %d: %s%s", filepath.Base(plugin), out.Status, out.Stdout,
			out.Stderr)
	}
	return []byte(out.Stdout), nil
}

var _ invoke.Exec = inWine{}
