package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/prometheus/controllers"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/pkg/controller/nodeipam"
	"k8s.io/kubernetes/pkg/controller/nodeipam/ipam"
)

// This file starts the parts of the control plane, for run (controlplane.go), which calls the
// functions in their order. Files without a path are in the working directory, options.dir.
// Keys and certificates are there already: loadPKI has made them (pki.go).

// etcdSocket is the socket of etcd for clients. A port could be taken by
// another process while the server is down.
const etcdSocket = "unix://etcd.sock"

// startEtcd starts etcd in this process and waits until it is ready. Its data is in
// the directory etcd. The caller must close it.
func startEtcd(ctx context.Context) (*embed.Etcd, error) {
	c := embed.NewConfig()
	c.Dir = "etcd"
	// fsync is not needed: the kernel keeps the writes of a killed process.
	c.UnsafeNoFsync = true
	c.LogLevel = "error"
	c.QuotaBackendBytes = 8 << 30 // the most that etcd recommends, so that no test fills the store; the default is 2 GiB
	for to, name := range map[*[]url.URL]string{&c.ListenClientUrls: etcdSocket,
		&c.ListenPeerUrls: "unix://peer.sock"} {
		u, err := url.Parse(name)
		if err != nil {
			return nil, err
		}
		*to = []url.URL{*u}
	}
	// The URLs that etcd advertises stay at their defaults, ports of localhost: without
	// other members nobody uses them.
	e, err := embed.StartEtcd(c)
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	select {
	case <-e.Server.ReadyNotify():
		return e, nil
	case err := <-e.Err():
		return nil, fmt.Errorf("etcd exited: %w", err)
	case <-ctx.Done():
		e.Close()
		return nil, ctx.Err()
	}
}

// auditPolicy selects what tests look at: all requests of flannel, and those of
// anybody for the resources that flannel uses. The first matching rule counts.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Request
  users: [system:serviceaccount:kube-flannel:flannel]
- level: Request
  resources: [{group: "", resources: [nodes, nodes/status, pods, events]}]
- level: None
`

// startAPIServer starts kube-apiserver in this process, as its command line would. It
// does not wait for it. The result of the server is sent to ended once, which must have room
// for it.
func startAPIServer(ctx context.Context, o options, ended chan<- error) error {
	args := []string{
		"--etcd-servers=" + etcdSocket,
		"--bind-address=" + o.listen.Addr().String(), "--secure-port=" + strconv.Itoa(int(o.listen.Port())),
		"--advertise-address=" + o.listen.Addr().String(),
		// The endpoint of the Service kubernetes is for pods, and must not be a
		// loopback address.
		"--endpoint-reconciler-type=none",
		"--tls-cert-file=apiserver.crt", "--tls-private-key-file=apiserver.key", "--client-ca-file=ca.crt",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-signing-key-file=" + tokenKey, "--service-account-key-file=" + tokenPublic,
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		// As with kubeadm: HostProcess containers count as privileged.
		"--allow-privileged=true",
		"--service-cluster-ip-range=" + serviceRange(o.listen.Addr().Is6()), "--cert-dir=certs",
	}
	if o.audit {
		if err := os.WriteFile("audit.yaml", []byte(auditPolicy), 0o600); err != nil {
			return err
		}
		args = append(args, "--audit-policy-file=audit.yaml", "--audit-log-path=audit.log")
	}
	cmd := app.NewAPIServerCommand()
	cmd.SetArgs(append(args, o.api...))
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	return nil
}

// serviceRange returns the network of Services, which must be of the family of the
// address that the server advertises. The first address of 10.96.0.0/16, a part of kubeadm's
// default network, is that of the Service kubernetes, and in the server's certificate
// (makePKI).
func serviceRange(v6 bool) string {
	if v6 {
		return "fd96::/108"
	}
	return "10.96.0.0/16"
}

// waitReady waits up to ten minutes, until /readyz of the server answers 200. It fails at
// once if the server ends, which it reads from ended.
func waitReady(ctx context.Context, config *rest.Config, ended <-chan error) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	client.Timeout = time.Minute // on a busy machine one request can take many seconds
	start := time.Now()
	for {
		answer, err := get(ctx, client, config.Host+"/readyz")
		if err == nil {
			return nil
		}
		if time.Since(start) > 10*time.Minute {
			return fmt.Errorf("kube-apiserver is not ready: %w %s", err, answer)
		}
		select {
		case err := <-ended:
			return fmt.Errorf("kube-apiserver exited: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// get makes one request, and returns the status line of the answer, "" without an answer. It
// is an error if the status is not 200.
func get(ctx context.Context, client *http.Client, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return resp.Status, fmt.Errorf("%s: status %s", url, resp.Status)
	}
	return resp.Status, nil
}

// startNodeIPAM runs the controller that kube-controller-manager runs with
// --allocate-node-cidrs.
func startNodeIPAM(ctx context.Context, config *rest.Config, o options) error {
	config = rest.AddUserAgent(rest.CopyConfig(config), "node-ipam-controller")
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	var cidrs []*net.IPNet
	for _, p := range o.cidrs {
		cidrs = append(cidrs, ipNet(p))
	}
	// Its goroutines end with ctx. 0: no resync; the controller sees every change by its watch.
	factory := informers.NewSharedInformerFactory(client, 0)
	// The three nil: no cloud provider, and no networks of Services to leave out.
	c, err := nodeipam.NewNodeIpamController(ctx, factory.Core().V1().Nodes(), nil, client, cidrs, nil, nil, o.masks,
		ipam.RangeAllocatorType)
	if err != nil {
		return fmt.Errorf("start node-ipam: %w", err)
	}
	factory.Start(ctx.Done())
	go c.RunWithMetrics(ctx, controllers.NewControllerManagerMetrics("kube"))
	return nil
}
