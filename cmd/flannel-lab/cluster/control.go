package cluster

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"k8s.io/client-go/tools/clientcmd"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
	"flannel/internal/test/kubetest/cluster"
)

// Files in Infra.
const (
	kubeDir    = "/var/lib/etcd/kube"
	Kubeconfig = kubeDir + "/admin.kubeconfig" // of the administrator
	tokensFile = "/run/tokens.csv"
)

// endpoint returns the address and port of the API server in Infra, which is the router
// (host 1) of the underlay.
func (o Options) endpoint() string {
	return netip.AddrPortFrom(o.underlay().Address(o.IPv6Only, 0, 1).Addr(), 6443).String()
}

// podNetworks returns the networks of pods, separated by commas: those of
// Documentation/kube-flannel.yml and of the pages about IPv6.
func (o Options) podNetworks() string {
	return o.networks("10.244.0.0/16", "fd00:244::/56")
}

// serviceNetworks returns the networks of Services, in the same form.
func (o Options) serviceNetworks() string {
	return o.networks("10.96.0.0/16", "fd00:96::/108")
}

// Services, by the host part of their addresses.
const (
	apiServer = 1
	dns       = 10 // in conformance/coredns.yaml; a cluster without it has no DNS
)

// service returns the address of a Service in the first of these networks.
func (o Options) service(host int) netip.Addr {
	first, _, _ := strings.Cut(o.serviceNetworks(), ",")
	a := netip.MustParsePrefix(first).Addr()
	for range host {
		a = a.Next()
	}
	return a
}

func (o Options) networks(v4, v6 string) string {
	switch o.family() {
	case lab.V6:
		return v6
	case lab.Dual:
		return v4 + "," + v6
	}
	return v4
}

// users are the users of the control plane's programs and of kube-proxy, with the groups
// that they are in: none. The API server binds roles to these names.
var users = map[string]string{"system:kube-controller-manager": "", "system:kube-scheduler": "", "system:kube-proxy": ""}

// makeTokens creates a token for each program, and for the kubelet of each node.
// The API server reads them from a file.
func (c *Cluster) makeTokens() error {
	c.tokens = map[string]string{}
	var b strings.Builder
	add := func(user, group string) {
		token := rand.Text()
		c.tokens[user] = token
		fmt.Fprintf(&b, "%s,%s,%s,%q\n", token, user, user, group)
	}
	for user, group := range users {
		add(user, group)
	}
	for i := range c.opts.Nodes {
		add("system:node:"+nodeName(i), "system:nodes")
	}
	return c.Infra.WriteFile(tokensFile, b.String())
}

// StartAPIServer starts the API server, again after KillAPIServer. It does not
// wait until it is ready. bin/kube passes on to kube-apiserver what follows "--", behind flags
// of its own: of a flag that is there twice, the last one counts. Paths are below kubeDir.
func (c *Cluster) StartAPIServer() error {
	// It writes the kubeconfig when it is ready.
	if err := c.Infra.Do(func() error { return os.RemoveAll(Kubeconfig) }); err != nil {
		return err
	}
	return c.startService("kube", exec.Command(filepath.Join(c.opts.BinDir, "kube"), "-dir="+kubeDir, "-listen="+c.opts.endpoint(),
		"-names="+c.opts.service(apiServer).String(), "--", // pods reach the server by its Service
		"--token-auth-file="+tokensFile, "--endpoint-reconciler-type=lease", "--service-cluster-ip-range="+c.opts.serviceNetworks(),
		// For kubectl exec and logs.
		"--kubelet-client-certificate=admin.crt", "--kubelet-client-key=admin.key", "--kubelet-preferred-address-types=InternalIP"))
}

// KillAPIServer ends the API server with SIGKILL.
func (c *Cluster) KillAPIServer() error {
	_, err := c.services["kube"].Stop(context.Background(), syscall.SIGKILL)
	return err
}

// startService starts a program of the control plane.
func (c *Cluster) startService(name string, cmd *exec.Cmd) (err error) {
	c.services[name], err = machine.StartProcess(c.Infra, cmd, name+".log")
	return err
}

// Ready waits until the API server is ready. The first time it also creates the
// administrator's client.
func (c *Cluster) Ready(ctx context.Context) error {
	server := c.services["kube"]
	var text []byte
	_, err := machine.Until(ctx, machine.Longest, func(context.Context) (err error) {
		if !server.Running() {
			return machine.Fatal(fmt.Errorf("kube exited: %s", machine.LastLine(server.Log())))
		}
		text, err = c.Infra.ReadFile(Kubeconfig)
		return err
	})
	if err != nil || c.Cluster != nil {
		return err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		return err
	}
	config.Dial, config.QPS = c.Infra.Dial, -1 // -1: no limit of requests per second
	c.ca = config.CAData
	c.Cluster, err = cluster.Open(config)
	return err
}

// startControllers starts the controller manager and the scheduler.
func (c *Cluster) startControllers() error {
	for name, args := range map[string][]string{
		"kube-controller-manager": {"--use-service-account-credentials", "--allocate-node-cidrs", "--cluster-cidr=" + c.opts.podNetworks(),
			"--service-cluster-ip-range=" + c.opts.serviceNetworks(), "--root-ca-file=" + kubeDir + "/ca.crt",
			"--service-account-private-key-file=" + kubeDir + "/sa.key",
			"--flex-volume-plugin-dir=/run/volumeplugins"}, // the default is made on the host
		"kube-scheduler": nil,
	} {
		file := "/run/" + name + ".kubeconfig"
		if err := c.Infra.WriteFile(file, c.kubeconfigOf("system:"+name)); err != nil {
			return err
		}
		args = append(c.opts.kubernetes(name, "--kubeconfig="+file, "--authentication-kubeconfig="+file, "--authorization-kubeconfig="+file,
			"--leader-elect=false", "--bind-address=127.0.0.1"), args...)
		if err := c.startService(name, exec.Command(args[0], args[1:]...)); err != nil {
			return err
		}
	}
	return nil
}

// kubeconfigOf returns the kubeconfig of a program, with the token of its user. Ready must
// have set ca.
func (c *Cluster) kubeconfigOf(user string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: lab, cluster: {server: "https://%s", certificate-authority-data: %s}}]
users: [{name: user, user: {token: %s}}]
contexts: [{name: lab, context: {cluster: lab, user: user}}]
current-context: lab
`, c.opts.endpoint(), base64.StdEncoding.EncodeToString(c.ca), c.tokens[user])
}

// Kubectl runs kubectl as the administrator and returns its output.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.Infra.Run(ctx, append([]string{"kubectl", "--kubeconfig=" + Kubeconfig}, args...)...)
}

// ApplyFile applies a manifest. Each pair of edits is a text in the manifest and
// its replacement; a text that is missing is an error.
func (c *Cluster) ApplyFile(ctx context.Context, file string, edits ...string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for i := 0; i < len(edits); i += 2 {
		if !strings.Contains(string(text), edits[i]) {
			return fmt.Errorf("%s does not contain %q", file, edits[i])
		}
	}
	objects, err := cluster.Objects([]byte(strings.NewReplacer(edits...).Replace(string(text))))
	if err != nil {
		return err
	}
	return c.Apply(ctx, false, objects...) // false: no dry run
}

// Manifest returns the path of Documentation/kube-flannel.yml.
func (c *Cluster) Manifest() string {
	return filepath.Join(c.opts.BinDir, "..", "Documentation", "kube-flannel.yml")
}

// Install applies the manifest, with the cluster's address families, and waits until
// flannel's pods and all nodes are ready. The edits are those of ApplyFile.
func (c *Cluster) Install(ctx context.Context, edits ...string) error {
	const network, v6 = `"Network": "10.244.0.0/16",`, `"EnableIPv6": true, "IPv6Network": "fd00:244::/56",`
	switch c.opts.family() {
	case lab.V6:
		edits = append(edits, network, `"EnableIPv4": false, `+v6)
	case lab.Dual:
		edits = append(edits, network, network+" "+v6)
	}
	if err := c.ApplyFile(ctx, c.Manifest(), edits...); err != nil {
		return err
	}
	if err := c.PodsReady(ctx, cluster.Namespace, FlannelPods); err != nil {
		return err
	}
	return c.NodesReady(ctx)
}

// Logs returns the last lines of the logs of all programs, and what kubectl shows, for a
// person who looks for the reason of a failure.
func (c *Cluster) Logs(ctx context.Context) string {
	var b strings.Builder
	for name, p := range c.services {
		fmt.Fprintf(&b, "infra, %s:\n%s\n", name, lastLines(p.Log(), 10))
	}
	for _, n := range c.Nodes {
		for name, p := range n.services {
			fmt.Fprintf(&b, "%s, %s:\n%s\n", n.Name, name, lastLines(p.Log(), 20))
		}
	}
	for _, args := range [][]string{{"get", "nodes,pods", "-A", "-o", "wide"}, {"get", "events", "-A"},
		{"logs", "-n", cluster.Namespace, "-l", "app=flannel", "--all-containers", "--prefix"}} {
		out, err := c.Kubectl(ctx, args...)
		fmt.Fprintf(&b, "kubectl %s: %v\n%s\n", strings.Join(args, " "), err, out)
	}
	return b.String()
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
