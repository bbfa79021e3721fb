package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	types "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/cmd/flannel-lab/machine"
)

// Pod is a network namespace that the CNI plugins have connected to its node.
// Commands run in a Pod use its network and the node's files. windows_pod.go has what
// differs on a Windows node.
type Pod struct {
	machine.Namespaces
	Node     *Node
	Name     string
	IP4, IP6 netip.Addr // invalid if the lab does not use the family

	netns string // CNI_NETNS of the plugins: a path; on Windows the ID of an HNS namespace
}

// conflist is kube-flannel's CNI configuration.
const conflist = `{
  "name": "cbr0",
  "cniVersion": "0.3.1",
  "plugins": [
    {"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true}},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`

const conflistPath = "/etc/cni/net.d/10-flannel.conflist"

var podName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,40}[a-z0-9])?$`)

// AddPod creates a pod as a container runtime does: a network namespace
// (/run/netns/NAME in the node), then ADD with the plugin chain in
// /etc/cni/net.d. It fails if flanneld has not written subnet.env. The gateway of a
// node's first IPv6 pod answers only when duplicate address detection is over,
// after about two seconds. AddPod waits for that. After an error of ADD it calls DEL, as
// runtimes do, and deletes the namespace.
func (n *Node) AddPod(ctx context.Context, name string) (*Pod, error) {
	if !podName.MatchString(name) {
		return nil, fmt.Errorf("pod name %q: only a-z, 0-9, dots and dashes are allowed", name)
	}
	if err := n.writeConf(ctx); err != nil {
		return nil, err
	}
	p := &Pod{Node: n, Name: name, netns: "/run/netns/" + name}
	makeNetns, join := p.makeNetns, p.join
	if n.Windows != nil {
		makeNetns, join = p.makeCompartment, p.joinWindows
	}
	if err := makeNetns(ctx); err != nil {
		return nil, fmt.Errorf("create the network namespace: %w", err)
	}
	if err := join(ctx); err != nil {
		err = fmt.Errorf("pod %s on %s: %w", name, n.Name, err)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute) // also if the caller gave up
		defer cancel()
		return nil, errors.Join(err, n.Do(func() error { return p.del(ctx) }), p.deleteNetns(ctx))
	}
	n.lab.podsMu.Lock()
	defer n.lab.podsMu.Unlock()
	n.pods[name] = p
	return p, n.lab.writeHosts()
}

// makeNetns creates the network namespace of the pod and opens it.
func (p *Pod) makeNetns(ctx context.Context) error {
	if _, err := p.Node.Run(ctx, "ip", "netns", "add", p.Name); err != nil {
		return err
	}
	_, err := p.Node.Run(ctx, "ip", "-n", p.Name, "link", "set", "lo", "up")
	if err == nil {
		err = p.Node.Do(func() error {
			f, err := os.Open(p.netns)
			if err == nil {
				p.Namespaces = p.Node.WithNet(f)
			}
			return err
		})
	}
	if err != nil {
		_, deleteErr := p.Node.Run(context.WithoutCancel(ctx), "ip", "netns", "delete", p.Name)
		return errors.Join(err, deleteErr)
	}
	return nil
}

// deleteNetns deletes the network namespace of the pod and closes its file.
func (p *Pod) deleteNetns(ctx context.Context) error {
	if p.Node.Windows != nil {
		return p.deleteCompartment()
	}
	if _, err := p.Node.Run(ctx, "ip", "netns", "delete", p.Name); err != nil {
		return err
	}
	return p.Files()[0].Close() // the pod's network; the other files belong to the node
}

// join calls ADD, and waits for an IPv6 gateway.
func (p *Pod) join(ctx context.Context) error {
	return p.Node.Do(func() error {
		if err := p.add(ctx); err != nil || !p.IP6.IsValid() {
			return err
		}
		_, err := machine.Until(ctx, machine.Longest, func(context.Context) error { return addressesUsable("cni0") })
		return err
	})
}

// addressesUsable returns an error while an IPv6 address of the device is
// tentative.
func addressesUsable(device string) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_V6)
	for _, a := range addrs {
		if a.Flags&unix.IFA_F_TENTATIVE != 0 {
			return fmt.Errorf("%s of %s is still tentative", a.IP, device)
		}
	}
	return err
}

// Pods returns a copy of the node's pods, by name.
func (n *Node) Pods() map[string]*Pod {
	n.lab.podsMu.Lock()
	defer n.lab.podsMu.Unlock()
	return maps.Clone(n.pods)
}

// chain calls f with what libcni needs for this pod: the plugins, the node's CNI
// configuration, rewritten to a version of the CNI specification, and the pod's ID
// and namespace. The caller is in the node, by Machine.Do, where libcni starts the
// plugins.
func (p *Pod) chain(version string, f func(*libcni.CNIConfig, *libcni.NetworkConfigList, *libcni.RuntimeConf) error) error {
	files, err := p.Node.confFiles()
	if err == nil && len(files) == 0 {
		err = errors.New("the node has no CNI configuration")
	}
	if err != nil {
		return err
	}
	list, err := readConf(files[0], version)
	if err != nil {
		return err
	}
	var exec invoke.Exec // nil runs the plugins as Linux programs
	if p.Node.Windows != nil {
		exec = inWine{p.Node}
	}
	cni := libcni.NewCNIConfig([]string{p.Node.plugins()}, exec)
	return f(cni, list, &libcni.RuntimeConf{ContainerID: "lab-" + p.Name, NetNS: p.netns, IfName: "eth0"})
}

// add calls ADD, and sets IP4 and IP6 to the addresses in its result. The caller is
// in the node.
func (p *Pod) add(ctx context.Context) error {
	return p.chain("0.3.1", func(cni *libcni.CNIConfig, list *libcni.NetworkConfigList, rt *libcni.RuntimeConf) error {
		res, err := cni.AddNetworkList(ctx, list, rt)
		if err != nil {
			return fmt.Errorf("CNI ADD: %w", err)
		}
		got, err := types.NewResultFromResult(res)
		if err != nil {
			return err
		}
		for _, ip := range got.IPs {
			a, _ := netip.AddrFromSlice(ip.Address.IP)
			if a = a.Unmap(); a.Is4() {
				p.IP4 = a
			} else {
				p.IP6 = a
			}
		}
		return nil
	})
}

// Check runs the plugins' CHECK, which compares the pod's network with the
// result of ADD. CHECK exists since CNI 0.4.0, whose results have the format of
// 0.3.1, hence the other version.
func (p *Pod) Check(ctx context.Context) error {
	return p.Node.Do(func() error {
		return p.chain("0.4.0", func(cni *libcni.CNIConfig, list *libcni.NetworkConfigList,
			rt *libcni.RuntimeConf) error {
			if err := cni.CheckNetworkList(ctx, list, rt); err != nil {
				return fmt.Errorf("CNI CHECK: %w", err)
			}
			return nil
		})
	})
}

// del calls DEL. The caller is in the node.
func (p *Pod) del(ctx context.Context) error {
	return p.chain("0.3.1", func(cni *libcni.CNIConfig, list *libcni.NetworkConfigList, rt *libcni.RuntimeConf) error {
		if err := cni.DelNetworkList(ctx, list, rt); err != nil {
			return fmt.Errorf("CNI DEL: %w", err)
		}
		return nil
	})
}

// Delete runs the plugins' DEL and removes the network namespace.
func (p *Pod) Delete(ctx context.Context) error {
	if err := p.Node.Do(func() error { return p.del(ctx) }); err != nil { // the namespace is still there
		return err
	}
	if err := p.deleteNetns(ctx); err != nil {
		return err
	}
	p.Node.lab.podsMu.Lock()
	defer p.Node.lab.podsMu.Unlock()
	delete(p.Node.pods, p.Name)
	return p.Node.lab.writeHosts()
}

// IP returns the pod's IPv4 address, or its IPv6 address if it has no IPv4.
func (p *Pod) IP() netip.Addr {
	if p.IP4.IsValid() {
		return p.IP4
	}
	return p.IP6
}

// writeConf writes the CNI configuration. It fails until flanneld has written
// subnet.env.
func (n *Node) writeConf(ctx context.Context) error {
	if _, err := n.SubnetEnv(); err != nil {
		return fmt.Errorf("pods need a running flanneld: %w", err)
	}
	if n.Windows != nil {
		return n.writeWindowsConf(ctx)
	}
	return n.WriteFile(conflistPath, conflist)
}

// confFiles returns the sorted paths of the node's CNI configuration files. A
// container runtime uses the first.
func (n *Node) confFiles() (files []string, err error) {
	err = n.Do(func() (err error) {
		files, err = libcni.ConfFiles(filepath.Dir(conflistPath), []string{".conf", ".conflist"})
		return err
	})
	slices.Sort(files)
	return files, err
}

// plugins returns the directory of the CNI plugins. On Windows these are the
// ones in C:\opt\cni\bin, if a test has installed any.
func (n *Node) plugins() string {
	if n.Windows != nil {
		dir := n.Windows.File(`C:\opt\cni\bin`)
		if _, err := os.Stat(dir); err == nil {
			return dir
		}
	}
	return filepath.Join(n.lab.opts.BinDir, "cni")
}

// readConf reads a .conf or .conflist file as a container runtime does. version
// replaces the file's cniVersion if that is 0.3.1, as in conflist.
func readConf(path, version string) (*libcni.NetworkConfigList, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	text = []byte(strings.Replace(string(text), `"0.3.1"`, `"`+version+`"`, 1)) // the first one is cniVersion
	if filepath.Ext(path) == ".conflist" {
		return libcni.NetworkConfFromBytes(text)
	}
	plugin, err := libcni.NetworkPluginConfFromBytes(text)
	if err != nil {
		return nil, err
	}
	//lint:ignore SA1019 container runtimes accept a .conf file, and use this function
	return libcni.ConfListFromConf(plugin)
}
