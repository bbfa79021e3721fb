package probe

import (
	"context"
	"fmt"
	"time"

	"flannel/pkg/doctor"
	"flannel/pkg/windows/hns"
)

// system returns the probes for Windows; none if the DLLs of HNS or of the IP
// stack cannot be loaded.
func system(o Options, s *doctor.Snapshot) []probe {
	m, err := openMachine(o.Timeout)
	if err != nil {
		return nil
	}
	return m.probes(o, s)
}

// openMachine returns this machine. Calls of HNS have a shorter timeout than
// probes, so that a probe can report which call hangs.
func openMachine(timeout time.Duration) (machine, error) {
	calls, err := hns.Open()
	if err != nil {
		return machine{}, err
	}
	stack, err := hns.OpenStack()
	if err != nil {
		return machine{}, err
	}
	firewall, err := hns.OpenFirewall()
	if err != nil {
		return machine{}, err
	}
	limit := timeout * 9 / 10
	return machine{hns.NewClient(calls, hns.Timing{Query: limit}), stack, hns.NewFirewallClient(firewall, limit), processes}, nil
}

// documents returns the contents of files for a support bundle, by file name:
// the version of HNS, its networks and endpoints as it returns them, and the adapters and routes
// of the IP stack. If reading takes longer than the timeout, hns.txt says so.
func documents(ctx context.Context, timeout time.Duration) map[string][]byte {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	m, err := openMachine(timeout)
	if err != nil {
		return map[string][]byte{"hns.txt": []byte(err.Error())}
	}
	read := make(chan map[string][]byte, 1)
	go func() { read <- m.documents(ctx) }()
	select {
	case files := <-read:
		return files
	case <-shortlyAfter(ctx):
		return map[string][]byte{"hns.txt": fmt.Appendf(nil, tookLonger+"\n", timeout)}
	}
}

// KubeProxyDSR reports whether a kube-proxy runs on this machine with direct
// server return; known is false if none runs, or its arguments do not say so.
func KubeProxyDSR() (dsr, known bool) {
	args, err := machine{processes: processes}.kubeProxy()
	if err != nil || len(args) == 0 {
		return false, false
	}
	return doctor.UsesDSR(args)
}
