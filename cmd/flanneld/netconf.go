package main

import (
	"context"
	"encoding/json"
	"errors"
	goflag "flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"strings"

	"flannel/backend"
	"flannel/pkg/dataplane"
	"flannel/pkg/file"
	"flannel/pkg/health"
	"flannel/subnet"
)

const netConfUsage = `Writes the network configuration of a Windows node that joins a cluster without the manifest: the file
--net-config-path. One that is there already counts, whatever it says; in what it differs from what is
asked for is told. It must say the same as the ConfigMap kube-flannel-cfg of the cluster.

  flanneld --kube-subnet-mgr [--net-config-path=FILE] net-conf [flags]
`

// modes are the backends by the names that scripts for Windows nodes have for them.
var modes = map[string]json.RawMessage{
	"overlay":  json.RawMessage(`{"Type": "vxlan", "VNI": 4096, "Port": 4789}`),
	"l2bridge": json.RawMessage(`{"Type": "host-gw"}`),
}

// composeNetConf makes the configuration for a mode and pod networks, one of each family at most.
func composeNetConf(mode string, cluster []netip.Prefix) ([]byte, error) {
	backend, ok := modes[strings.ToLower(mode)] // PowerShell's ValidateSet lets any case through
	if !ok {
		return nil, fmt.Errorf("--network-mode: %.40q is neither overlay nor l2bridge", mode)
	}
	conf := map[string]any{"Backend": backend, "EnableIPv4": false}
	for _, p := range cluster {
		network, enable := "Network", "EnableIPv4"
		if p.Addr().Is6() {
			network, enable = "IPv6Network", "EnableIPv6"
		}
		if _, twice := conf[network]; twice {
			return nil, fmt.Errorf("--cluster-cidr: %s is the second of its family; give one of each at most", p)
		}
		conf[network], conf[enable] = p, true
	}
	raw, err := json.MarshalIndent(conf, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the network configuration: %w", err)
	}
	if _, _, _, err = parseConfigFor("windows", raw); err != nil {
		return nil, err
	}
	return append(raw, '\n'), nil
}

// netConfAnswer is what net-conf answers with --json.
type netConfAnswer struct {
	Path    string   `json:"path"`
	Result  string   `json:"result,omitempty"`  // "written", "kept"
	Differs []string `json:"differs,omitempty"` // what the one that was kept has otherwise than asked for
	Problem string   `json:"problem,omitempty"`
}

// makeNetConf is the command that writes the network configuration where there is none.
func makeNetConf(o options, stdout, stderr io.Writer) int {
	var flags goflag.FlagSet
	var cluster []netip.Prefix
	mode := flags.String("network-mode", "overlay", "overlay (vxlan) or l2bridge (host-gw)")
	flags.Func("cluster-cidr", "pod `network`, one of each family at most (default 10.244.0.0/16)", listOf(&cluster, parseNetwork))
	asJSON := flags.Bool("json", false, "print one JSON document: path, result (written or kept), differs, problem")
	if done, code := parseCommand(&flags, netConfUsage, o, stdout, stderr); done {
		return code
	}
	if !o.Kube.On || o.Kube.NetConfPath == "" {
		return refuse(o.Args, errors.New("net-conf: the file is read with leases in Kubernetes alone: give --kube-subnet-mgr, before net-conf, and a --net-config-path that is not empty"), stdout, stderr)
	}
	if len(cluster) == 0 {
		cluster = anyNetwork
	}
	want, err := composeNetConf(*mode, cluster)
	if err != nil {
		return refuse(o.Args, fmt.Errorf("net-conf: %w", err), stdout, stderr)
	}
	done, err := putNetConf(o.Kube.NetConfPath, want)
	if err != nil {
		err = fmt.Errorf("net-conf: %w", err)
		done.Problem = err.Error()
		return answer(stdout, stderr, *asJSON, done, "", err)
	}
	text := done.Path + ": " + done.Result
	if len(done.Differs) > 0 {
		text += ", and it counts, though it says something else than asked for:\n  " + strings.Join(done.Differs, "\n  ")
	}
	return answer(stdout, stderr, *asJSON, done, text, nil)
}

func putNetConf(path string, want []byte) (netConfAnswer, error) {
	done := netConfAnswer{Path: path}
	is, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err = file.Put(path, want, 0o644); err == nil {
			done.Result = "written"
		}
	case err == nil:
		done.Result = "kept"
		if done.Differs, err = differences(is, want); err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}
	return done, err
}

// differences tells in what one configuration departs from another one that can work, in the parts that net-conf sets.
func differences(is, want []byte) (all []string, err error) {
	have, _, _, err := parseConfigFor("windows", is)
	if err != nil {
		return nil, fmt.Errorf("the network configuration that is there cannot work: %w", err)
	}
	asked, _, _, err := parseConfigFor("windows", want)
	if err != nil {
		return nil, err
	}
	differ := func(what string, have, asked any) {
		if have != asked {
			all = append(all, fmt.Sprintf("%s is %v, not %v", what, have, asked))
		}
	}
	differ("Backend.Type", have.Backend, asked.Backend)
	for _, n := range []struct {
		key         string
		have, asked subnet.Network
	}{{"Network", have.V4, asked.V4}, {"IPv6Network", have.V6, asked.V6}} {
		differ(n.key, prefixText(n.have.Prefix), prefixText(n.asked.Prefix))
	}
	return all, nil
}

func prefixText(p netip.Prefix) string {
	if !p.IsValid() {
		return "none"
	}
	return p.String()
}

// netConfName says which configuration an error is about.
func netConfName(o options) string {
	if o.Kube.On {
		return "the network configuration in " + o.Kube.NetConfPath
	}
	return "the network configuration in etcd, at " + o.Etcd.Prefix + "/config,"
}

// readNetConf is the raw configuration where the daemon would have it from. etcd is waited for until ctx ends.
func readNetConf(ctx context.Context, o options, log *slog.Logger) (raw []byte, err error) {
	if o.Kube.On {
		if raw, err = os.ReadFile(o.Kube.NetConfPath); err != nil {
			return nil, fmt.Errorf("read the network configuration: %w", err)
		}
		return raw, nil
	}
	m, err := newManager(ctx, o, &health.Status{}, log)
	if err != nil {
		return nil, err
	}
	defer m.Close() //nolint:errcheck // what is read is read
	ctx, enough := context.WithCancel(ctx)
	defer enough()
	err = m.WatchConfig(ctx, func(found []byte) { raw = found; enough() })
	if raw != nil {
		return raw, nil
	}
	return nil, fmt.Errorf("no network configuration in etcd within the time (--kube-subnet-mgr is for that of Kubernetes): %w", errors.Join(err, ctx.Err()))
}

// networkFor is the HNS network that a configuration's backend wants on a Windows node.
func networkFor(maker backend.Maker, n backend.Node) (dataplane.Device, error) {
	b, _, err := maker(n)
	if err != nil {
		return dataplane.Device{}, err
	}
	for _, dev := range b.Devices(subnet.Lease{V4: subnet.Endpoint{Subnet: netip.MustParsePrefix("192.168.255.0/30")}}) {
		if dev.Kind == dataplane.Overlay || dev.Kind == dataplane.L2Bridge {
			return dev, nil
		}
	}
	return dataplane.Device{}, errors.New("its backend makes no HNS network; Windows has vxlan and host-gw")
}
