// This file has the callers of VIPKeeper: ReserveVIP for the commands source-vip and node kube-proxy, and KeepVIP for
// the daemon.

package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"flannel/pkg/file"
	"flannel/pkg/reconcile"
	"flannel/pkg/windows/hns"
	"flannel/subnet"
)

// VIPFile returns where the daemon with this subnet file publishes the source VIP, the address from
// which kube-proxy sends (see VIPKeeper in sourcevip.go).
func VIPFile(subnetFile string) string {
	return filepath.Join(filepath.Dir(subnetFile), "source-vip.json")
}

// JournalFile returns where the daemon with this subnet file saves the settings that
// the adapter had before the HNS network was created.
func JournalFile(subnetFile string) string {
	return filepath.Join(filepath.Dir(subnetFile), "hns.json")
}

// OpenVIP opens HNS. dataDir is host-local's; KeepVIP prefers the published one. Calls of
// HNS have the limits of the driver's (timing in hns_windows.go); the callers retry.
func OpenVIP(subnetFile, dataDir string, log *slog.Logger) (VIPKeeper, error) {
	calls, err := hns.Open()
	if err != nil {
		return VIPKeeper{}, err
	}
	stack, err := hns.OpenStack()
	if err != nil {
		return VIPKeeper{}, err
	}
	client := hns.NewClient(calls, hns.Timing{Query: 3 * time.Second, Change: 5 * time.Second})
	return VIPKeeper{Client: client, Stack: stack, File: VIPFile(subnetFile), DataDir: dataDir, Log: log}, nil
}

// SourceVIP is the result of ReserveVIP.
type SourceVIP struct {
	Needed  bool     `json:"needed"`        // false: the network is an L2Bridge
	DSR     *bool    `json:"dsr,omitempty"` // HNS supports kube-proxy's --enable-dsr; nil: an error came first
	*VIP             // what File has; without Addr if it is not Needed; nil: an error came first
	Flags   []string `json:"kubeProxyFlags,omitempty"`
	File    string   `json:"file,omitempty"` // where the VIP is published; "": not Needed, or an error came first
	Warning error    `json:"-"`              // what could not be done, and does not concern kube-proxy: the daemon tries again; nil: nothing
}

// ReserveVIP reserves the source VIP if the node needs one, and returns it with the
// flags for kube-proxy, also as a text for a person. It waits until ctx ends for the
// daemon to create the network. proxy has what is known of kube-proxy already: its version,
// feature gates, and perhaps the pod networks.
func ReserveVIP(ctx context.Context, k VIPKeeper, subnetFile string, proxy KubeProxy) (result SourceVIP, text string, err error) {
	var vip VIP
	needed := true // false: on an L2Bridge, the addresses of the host's endpoint are reserved instead
	waiting := func(reason error) { k.Log.Info("waiting to reserve the source VIP", "reason", reason) }
	err = retry(ctx, 500*time.Millisecond, nil, waiting, func() (err error) { // nil: no notifications. The interval is a choice
		if vip, err = ensureVIP(ctx, k, subnetFile); errors.Is(err, errVIPNotNeeded) {
			needed, err = false, nil
		} else if errors.Is(err, errHostAddress) { // a success for kube-proxy: the daemon tries again
			needed, result.Warning, err = false, err, nil
		} else if errors.Is(err, errFormerEndpoint) { // likewise
			result.Warning, err = err, nil
		}
		return err
	})
	result.Needed = needed // also if the error came before it was known
	if err != nil {
		return result, "", err
	}
	text = fmt.Sprintf("%s of %s is kube-proxy's source VIP on %s; published in %s", vip.Addr, vip.Subnet, vip.Network, k.File)
	if !result.Needed {
		text = fmt.Sprintf("%v such as %s", errVIPNotNeeded, vip.Network)
	}
	version, err := k.Client.Version(ctx)
	if err != nil {
		return result, "", err
	}
	features := version.Features()
	env, err := subnet.ReadEnv(subnetFile)
	if err != nil {
		return result, "", err
	}
	proxy.Network, proxy.VIP, proxy.DSR = vip.Network, vip.Addr, features.DSR
	if len(proxy.Cluster) == 0 {
		proxy.Cluster = slices.DeleteFunc([]netip.Prefix{env.V4Network, env.V6Network}, func(p netip.Prefix) bool { return !p.IsValid() })
	}
	result.VIP, result.DSR, result.Flags = &vip, &features.DSR, proxy.Flags()
	if result.Needed {
		result.File = k.File
	}
	return result, text + "\nflags for kube-proxy: " + strings.Join(result.Flags, " "), nil
}

// ensureVIP ensures the VIP of the subnet in the subnet file.
func ensureVIP(ctx context.Context, k VIPKeeper, subnetFile string) (VIP, error) {
	env, err := subnet.ReadEnv(subnetFile)
	if err != nil {
		return VIP{}, err
	}
	own := env.V4Subnet
	if !own.IsValid() {
		own = env.V6Subnet // only an L2Bridge has no IPv4; it needs no VIP
	}
	if own == (netip.Prefix{}) {
		return VIP{}, fmt.Errorf("waiting for the daemon to write %s", subnetFile)
	}
	return k.Ensure(ctx, own)
}

// resyncVIP is the time between checks of the source VIP without a notification, since there are none of endpoints and
// of files of host-local. retryVIP is the time after a failure. Both are choices.
const resyncVIP, retryVIP = time.Minute, 5 * time.Second

// KeepVIP maintains, until ctx ends, the source VIP that the command source-vip has
// reserved: it restores it, and replaces it if the node has a new subnet. It runs in a
// goroutine of the daemon beside the loop, and does nothing while no VIP is published. An error
// is one of the start; later ones are logged and tried again.
func KeepVIP(ctx context.Context, subnetFile, dataDir string, log *slog.Logger) error {
	k, err := OpenVIP(subnetFile, dataDir, log)
	if err != nil {
		return err
	}
	subnetFileChanges, err := file.Watch(ctx, subnetFile)
	if err != nil {
		return err
	}
	r := reconcile.Runner{
		News:   []<-chan struct{}{subnetFileChanges, k.Client.Changes(ctx)},
		Resync: resyncVIP,
		Retry:  reconcile.Backoff{First: retryVIP},
		Once:   reconcile.Once{Grace: retryVIP}, // failures before that are not logged: the network is probably being created
		// 0: again at Resync.
		Work: func(ctx context.Context) (time.Duration, error) { return 0, restoreVIP(ctx, k, subnetFile) },
		Tell: func(err error) {
			if err != nil { // nil: restored after a failure
				log.Warn("could not reserve this node's addresses, will retry", "reason", err)
			}
		},
	}
	r.Run(ctx)
	return nil
}

// restoreVIP ensures the VIP if one is published, in the published directory of
// host-local.
func restoreVIP(ctx context.Context, k VIPKeeper, subnetFile string) error {
	published, err := ReadVIP(k.File)
	switch {
	case err == nil && published == (VIP{}):
		return nil // the command source-vip was not used
	case err == nil && published.Store != "":
		k.DataDir = filepath.Dir(published.Store)
	case err != nil && !file.Unusable(err):
		return err // it may name another directory than k.DataDir
	}
	// An Unusable file (of another owner, or not as we write it) is replaced, with the directory k.DataDir.
	if _, err = ensureVIP(ctx, k, subnetFile); errors.Is(err, errVIPNotNeeded) {
		return nil
	}
	return err
}
