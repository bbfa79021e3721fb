package main

import (
	"context"
	"errors"
	goflag "flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"flannel/pkg/file"
	"flannel/pkg/hns"
	"flannel/pkg/sourcevip"
	"flannel/subnet"
)

const sourceVIPUsage = `Reserves the address from which Windows' kube-proxy sends on an overlay (its --source-vip), and
publishes it in source-vip.json beside the subnet file. Once it is there, the daemon keeps it: it looks
at each start, and when the node has got another subnet it reserves another and publishes that.

The address is the first of the node's subnet, from the second on, that no pod has, and it is reserved
in the store of the CNI plugin host-local as kube-proxy's. On an L2Bridge kube-proxy needs none.

It also says which flags kube-proxy needs for this node's network and for what its HNS can do. Whoever
starts kube-proxy adds --proxy-mode=kernelspace, --hostname-override and --kubeconfig.

  flanneld [--subnet-file=FILE] source-vip [flags]
`

// vipFile is where the source VIP is published.
func vipFile(o options) string { return filepath.Join(filepath.Dir(o.SubnetFile), "source-vip.json") }

// journalFile is where bring-up on Windows writes down what the adapter had.
func journalFile(o options) string { return filepath.Join(filepath.Dir(o.SubnetFile), "hns.json") }

// usualDataDir is host-local's own default.
func usualDataDir() string { return systemPath("/var/lib/cni/networks") }

// newKeeper opens HNS. dataDir counts where nothing is published yet, or everything is to be made anew.
func newKeeper(o options, dataDir string, log *slog.Logger) (sourcevip.Keeper, error) {
	calls, err := hns.Open()
	if err != nil {
		return sourcevip.Keeper{}, err
	}
	stack, err := hns.OpenStack()
	if err != nil {
		return sourcevip.Keeper{}, err
	}
	client := hns.NewClient(calls, hns.Timing{Query: 3 * time.Second, Change: 5 * time.Second})
	return sourcevip.Keeper{Client: client, Stack: stack, File: vipFile(o), DataDir: dataDir, Log: log}, nil
}

// vipAnswer is what source-vip answers with --json.
type vipAnswer struct {
	Needed         bool     `json:"needed"`
	DSR            *bool    `json:"dsr,omitempty"` // whether this HNS can do kube-proxy's --enable-dsr
	*sourcevip.VIP          // on an L2Bridge, subnet and network alone
	Flags          []string `json:"kubeProxyFlags,omitempty"`
	File           string   `json:"file,omitempty"`
	Released       []string `json:"released,omitempty"`
	Problem        string   `json:"problem,omitempty"`
}

// sourceVIP is the command that reserves, or releases, kube-proxy's source VIP, and tells kube-proxy's flags.
func sourceVIP(ctx context.Context, o options, log *slog.Logger, stdout, stderr io.Writer) int {
	var flags goflag.FlagSet
	var proxy sourcevip.Proxy
	dataDir := flags.String("data-dir", usualDataDir(), "host-local's dataDir, as the CNI configuration has it; the `directory` with one for each network")
	limit := limitFlag(&flags, "timeout", time.Minute, "how long to wait for the daemon to make the `network`")
	release := flags.Bool("release", false, "end the reservation, its endpoint and the file; the daemon keeps none then")
	flags.Func("kube-proxy-version", "kube-proxy's `version`, such as v1.33.1, or as its --version says it; default: a current one", func(text string) (err error) {
		proxy.Minor, err = sourcevip.ParseMinor(text)
		return err
	})
	flags.Func("kube-proxy-feature-gates", "feature gates that kube-proxy shall have, as `NAME=true,...`", func(text string) error {
		proxy.Gates = strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
		return nil
	})
	flags.Func("cluster-cidr", "pod `network` for kube-proxy; default: what the subnet file says", listOf(&proxy.Cluster, parseNetwork))
	asJSON := flags.Bool("json", false, "print one JSON document: needed, dsr (whether HNS can do kube-proxy's --enable-dsr), sourceVIP, subnet, network, store, kubeProxyFlags, file, problem")
	if done, code := parseCommand(&flags, sourceVIPUsage, o, stdout, stderr); done {
		return code
	}
	if runtime.GOOS != "windows" {
		err := errors.New("source-vip: this is for Windows, whose kube-proxy wants an address of its own on an overlay; that of " + runtime.GOOS + " does not")
		return answer(stdout, stderr, *asJSON, failure{err.Error()}, "", err)
	}
	k, err := newKeeper(o, *dataDir, log)
	if err != nil {
		err = fmt.Errorf("source-vip: %w", err)
		return answer(stdout, stderr, *asJSON, failure{err.Error()}, "", err)
	}
	if *release {
		removed, err := k.Release(ctx)
		text := "there is no source VIP"
		if len(removed) > 0 {
			text = "removed " + strings.Join(removed, "\nremoved ")
		}
		return answer(stdout, stderr, *asJSON, vipAnswer{Released: removed, Problem: problem(err)}, text, err)
	}
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	told, text, err := tellVIP(ctx, k, o.SubnetFile, proxy, log)
	if err != nil {
		err = fmt.Errorf("source-vip: %w", err)
		told.Problem = err.Error()
	}
	return answer(stdout, stderr, *asJSON, told, text, err)
}

// tellVIP reserves the VIP, where one is needed, and completes what kube-proxy must know.
func tellVIP(ctx context.Context, k sourcevip.Keeper, subnetFile string, proxy sourcevip.Proxy, log *slog.Logger) (told vipAnswer, text string, err error) {
	vip, err := awaitVIP(ctx, k, subnetFile, log)
	if told.Needed = !errors.Is(err, sourcevip.ErrNotNeeded); err != nil && told.Needed {
		return told, "", err
	}
	if text = fmt.Sprintf("%s of %s is kube-proxy's source VIP on %s; published in %s", vip.Addr, vip.Subnet, vip.Network, k.File); !told.Needed {
		text = fmt.Sprintf("%v, which %s is", err, vip.Network)
	}
	_, can, err := k.Client.Features(ctx)
	if err != nil {
		return told, "", err
	}
	env, err := subnet.ReadEnv(subnetFile)
	if err != nil {
		return told, "", err
	}
	proxy.Network, proxy.VIP, proxy.DSR = vip.Network, vip.Addr, can.DSR
	if len(proxy.Cluster) == 0 {
		proxy.Cluster = slices.DeleteFunc([]netip.Prefix{env.V4Network, env.V6Network}, func(p netip.Prefix) bool { return !p.IsValid() })
	}
	told.VIP, told.DSR, told.Flags = &vip, &can.DSR, proxy.Flags()
	if told.Needed {
		told.File = k.File
	}
	return told, text + "\nkube-proxy's flags for it: " + strings.Join(told.Flags, " "), nil
}

// awaitVIP tries until there is one, and says once what it waits for.
func awaitVIP(ctx context.Context, k sourcevip.Keeper, subnetFile string, log *slog.Logger) (sourcevip.VIP, error) {
	var last error
	for {
		vip, err := ensureVIP(ctx, k, subnetFile)
		if err == nil || errors.Is(err, sourcevip.ErrNotNeeded) {
			return vip, err
		}
		if ctx.Err() == nil && (last == nil || last.Error() != err.Error()) {
			log.Info("no source VIP yet", "reason", err)
			last = err
		}
		select {
		case <-ctx.Done():
			if last == nil {
				last = err
			}
			return sourcevip.VIP{}, fmt.Errorf("%s: %w", ended(ctx, "gave up"), last)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func ensureVIP(ctx context.Context, k sourcevip.Keeper, subnetFile string) (sourcevip.VIP, error) {
	env, err := subnet.ReadEnv(subnetFile)
	if err != nil {
		return sourcevip.VIP{}, err
	}
	own := env.V4Subnet
	if !own.IsValid() {
		own = env.V6Subnet // of an L2Bridge, which needs none
	}
	if own == (netip.Prefix{}) {
		return sourcevip.VIP{}, fmt.Errorf("waiting for the daemon to write %s", subnetFile)
	}
	return k.Ensure(ctx, own)
}

// lookAtVIP is how often the source VIP is compared with what it shall be, though nothing was told to have changed.
const lookAtVIP = time.Minute

// keepSourceVIP keeps, until ctx ends, what the command source-vip once made.
func keepSourceVIP(ctx context.Context, o options, log *slog.Logger) error {
	if runtime.GOOS != "windows" {
		return nil
	}
	k, err := newKeeper(o, usualDataDir(), log)
	if err != nil {
		return err
	}
	env, err := file.Watch(ctx, o.SubnetFile)
	if err != nil {
		return err
	}
	changed := k.Client.Changes(ctx)
	for said, since := "", time.Now(); ; {
		wait := lookAtVIP
		err := keepVIP(ctx, k, o.SubnetFile)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			said, since = "", time.Now()
		default:
			wait = 5 * time.Second
			if time.Since(since) > wait && err.Error() != said { // before that, the network is on its way
				log.Warn("kube-proxy's source VIP is not as it shall be; trying again", "reason", err)
				said = err.Error()
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-env:
		case <-changed:
		case <-time.After(wait):
		}
	}
}

// keepVIP makes all be as published, or as it should be for the present subnet.
func keepVIP(ctx context.Context, k sourcevip.Keeper, subnetFile string) error {
	published, err := sourcevip.Read(k.File)
	switch {
	case err == nil && published == (sourcevip.VIP{}):
		return nil // nobody has asked for one
	case err == nil && published.Store != "":
		k.DataDir = filepath.Dir(published.Store)
	}
	if _, err = ensureVIP(ctx, k, subnetFile); errors.Is(err, sourcevip.ErrNotNeeded) {
		return nil
	}
	return err
}
