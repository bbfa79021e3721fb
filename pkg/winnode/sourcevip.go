package winnode

import (
	"context"
	"errors"
	"fmt"
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

// VIPFile is where the daemon with that subnet file publishes the source VIP.
func VIPFile(subnetFile string) string {
	return filepath.Join(filepath.Dir(subnetFile), "source-vip.json")
}

// JournalFile is where the daemon with that subnet file writes down what the adapter had before its network was made.
func JournalFile(subnetFile string) string {
	return filepath.Join(filepath.Dir(subnetFile), "hns.json")
}

// OpenVIP opens HNS. dataDir counts where nothing is published yet, or everything is to be made anew.
func OpenVIP(subnetFile, dataDir string, log *slog.Logger) (sourcevip.Keeper, error) {
	calls, err := hns.Open()
	if err != nil {
		return sourcevip.Keeper{}, err
	}
	stack, err := hns.OpenStack()
	if err != nil {
		return sourcevip.Keeper{}, err
	}
	client := hns.NewClient(calls, hns.Timing{Query: 3 * time.Second, Change: 5 * time.Second})
	return sourcevip.Keeper{Client: client, Stack: stack, File: VIPFile(subnetFile), DataDir: dataDir, Log: log}, nil
}

// SourceVIP is what kube-proxy must know of its source VIP.
type SourceVIP struct {
	Needed         bool     `json:"needed"`
	DSR            *bool    `json:"dsr,omitempty"` // whether this HNS can do kube-proxy's --enable-dsr
	*sourcevip.VIP          // on an L2Bridge, subnet and network alone
	Flags          []string `json:"kubeProxyFlags,omitempty"`
	File           string   `json:"file,omitempty"`
}

// ReserveVIP reserves the VIP, where one is needed, and completes what kube-proxy must know; text says it for a person. It
// waits for the daemon to make the network until ctx ends.
func ReserveVIP(ctx context.Context, k sourcevip.Keeper, subnetFile string, proxy sourcevip.Proxy) (told SourceVIP, text string, err error) {
	vip, err := awaitVIP(ctx, k, subnetFile)
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
func awaitVIP(ctx context.Context, k sourcevip.Keeper, subnetFile string) (sourcevip.VIP, error) {
	var last error
	for {
		vip, err := ensureVIP(ctx, k, subnetFile)
		if err == nil || errors.Is(err, sourcevip.ErrNotNeeded) {
			return vip, err
		}
		if ctx.Err() == nil && (last == nil || last.Error() != err.Error()) {
			k.Log.Info("no source VIP yet", "reason", err)
			last = err
		}
		select {
		case <-ctx.Done():
			if last == nil {
				last = err
			}
			return sourcevip.VIP{}, fmt.Errorf("%s: %w", gaveUp(ctx), last)
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

// KeepVIP keeps, until ctx ends, what the command source-vip once made. Systems other than Windows need none.
func KeepVIP(ctx context.Context, subnetFile, dataDir string, log *slog.Logger) error {
	if runtime.GOOS != "windows" {
		return nil
	}
	k, err := OpenVIP(subnetFile, dataDir, log)
	if err != nil {
		return err
	}
	env, err := file.Watch(ctx, subnetFile)
	if err != nil {
		return err
	}
	changed := k.Client.Changes(ctx)
	for said, since := "", time.Now(); ; {
		wait := lookAtVIP
		err := keepVIP(ctx, k, subnetFile)
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
