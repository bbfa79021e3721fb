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

// A pod of a Windows node is an HNS endpoint in an HNS namespace, made by the real plugins in Wine. It has no processes:
// the simulated machine answers for it, and pings that its Namespaces send are the node's, from the pod's address.

// makeCompartment does what containerd does before it calls the plugins.
func (p *Pod) makeCompartment(context.Context) error {
	p.netns = fmt.Sprintf("%08x-0000-4000-8000-%012x", rand.Uint32(), rand.Uint64()&(1<<48-1))
	handle, err := p.Node.Windows.Call("HcnCreateNamespace", p.netns, `{"Type":"Host","SchemaVersion":{"Major":2,"Minor":0}}`)
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

func (p *Pod) joinWindows(ctx context.Context) error {
	err := p.Node.Do(func() error { return p.add(ctx) })
	if err != nil {
		// On a bridge, host-local first gives what the host's endpoint has. Kubelet deletes, and tries again.
		err = p.Node.Do(func() error { return errors.Join(p.del(ctx), p.add(ctx)) })
	}
	if err != nil {
		return err
	}
	p.Namespaces = p.Node.Namespaces
	p.From = p.IP4
	return nil
}

// services are the cluster's networks of Services, where there is a cluster.
const services = "10.96.0.0/12"

// writeWindowsConf has flanneld.exe write the configuration by which the plugins find its network, as its users do. What
// is there by another name, which runtimes would take first, stays.
func (n *Node) writeWindowsConf(ctx context.Context) error {
	if files, err := n.confFiles(); err != nil || len(files) > 0 && files[0] != conflistPath {
		return err
	}
	did, err := n.RunProgram(ctx, n.lab.opts.flanneldExe(), append(n.Args(), "cni-conf", "--to="+n.path(conflistPath), "--service-cidr="+services,
		"--management-ip="+n.IP4.String(), "--force")...)
	if err == nil && did.Status != 0 {
		err = fmt.Errorf("flanneld.exe cni-conf ended with status %d: %s", did.Status, did.Stderr)
	}
	return err
}

// inWine runs CNI plugins that are programs for Windows.
type inWine struct{ node *Node }

// FindInPath implements invoke.Exec.
func (inWine) FindInPath(plugin string, paths []string) (string, error) {
	return filepath.Join(paths[0], plugin+".exe"), nil
}

// Decode implements invoke.Exec.
func (inWine) Decode(answer []byte) (version.PluginInfo, error) {
	return new(version.PluginDecoder).Decode(answer)
}

// ExecPlugin implements invoke.Exec.
func (w inWine) ExecPlugin(ctx context.Context, plugin string, stdin []byte, environ []string) ([]byte, error) {
	cmd := w.node.Windows.program(plugin)
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		switch {
		case name == "CNI_PATH":
			cmd.Env = append(cmd.Env, name+`=Z:`+strings.ReplaceAll(value, "/", `\`))
		case strings.HasPrefix(name, "CNI_"):
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Stdin = bytes.NewReader(stdin)
	did, err := w.node.toEnd(ctx, cmd)
	if err != nil {
		return nil, err
	}
	if did.Status != 0 {
		said := &types.Error{}
		if json.Unmarshal([]byte(did.Stdout), said) == nil && said.Msg != "" {
			return nil, said
		}
		return nil, fmt.Errorf("%s ended with status %d: %s%s", filepath.Base(plugin), did.Status, did.Stdout, did.Stderr)
	}
	return []byte(did.Stdout), nil
}

var (
	_ invoke.Exec = inWine{}
)
