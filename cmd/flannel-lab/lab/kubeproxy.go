package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/cmd/flannel-lab/machine"
)

// Files of a node with which its kube-proxy authenticates to the API server.
const (
	proxyDir        = "/var/lib/kube-proxy"
	proxyToken      = proxyDir + "/token"
	proxyKubeconfig = proxyDir + "/kubeconfig.conf"
	proxyAccount    = "kube-proxy" // in kube-system, as with kubeadm
)

// KubeProxy is a running kube-proxy of a node.
type KubeProxy struct{ proc *machine.Process }

func (o Options) kubeProxy() string    { return filepath.Join(o.BinDir, "kube-proxy") }
func (o Options) kubeProxyExe() string { return filepath.Join(o.BinDir, "kube-proxy.exe") }

// KubeProxyVersion returns the output of kube-proxy.exe --version. n must be a
// Windows node.
func (n *Node) KubeProxyVersion(ctx context.Context) (string, error) {
	out, err := n.RunProgram(ctx, n.lab.opts.kubeProxyExe(), "--version")
	if err == nil && out.Status != 0 {
		err = fmt.Errorf("run 'make test-kube-proxy', which builds it: kube-proxy.exe exited with status %d: %s",
			out.Status, out.Stderr)
	}
	return out.Stdout, err
}

// StartKubeProxy starts kube-proxy, or kube-proxy.exe on a Windows node, with
// flags and those that both programs need. The program has the permissions that
// kubeadm gives it. The lab must have been made with Options.Kube. The program runs
// until Kill, or until the lab is closed.
//
// Each node has network, mount and PID namespaces of its own. A Windows node is
// simulated in such namespaces, and its programs run in Wine.
func (n *Node) StartKubeProxy(ctx context.Context, flags ...string) (*KubeProxy, error) {
	token, err := n.lab.Kube.proxyToken(ctx)
	if err != nil {
		return nil, fmt.Errorf("make kube-proxy's account: %w", err)
	}
	kubeconfig, err := n.lab.Kube.Kubeconfig("", n.path(proxyToken)) // "": with the URL of the lab's server; path: C:\var\… on Windows
	if err != nil {
		return nil, err
	}
	err = n.Do(func() error { // in the node's namespaces, where these paths are the node's
		return errors.Join(os.MkdirAll(proxyDir, 0o755), os.WriteFile(proxyToken, []byte(token), 0o600),
			os.WriteFile(proxyKubeconfig, kubeconfig, 0o600))
	})
	if err != nil {
		return nil, err
	}
	// --v=4: tests that fail print the log, which then has what kube-proxy does in HNS or in the kernel.
	common := []string{"--v=4", "--hostname-override=" + n.Name, "--kubeconfig=" + n.path(proxyKubeconfig)}
	cmd := n.kubeProxyCommand(append(common, flags...))
	proc, err := machine.StartProcess(n.Machine, cmd, "kube-proxy.log")
	if err != nil {
		return nil, err
	}
	return &KubeProxy{proc}, nil
}

func (n *Node) kubeProxyCommand(flags []string) *exec.Cmd {
	if n.Windows != nil {
		return n.Windows.program(n.lab.opts.kubeProxyExe(), append(flags, "--proxy-mode=kernelspace")...)
	}
	// 0 leaves the limits of conntrack alone: they belong to the host, and cannot
	// be set in a network namespace.
	cmd := exec.Command(n.lab.opts.kubeProxy(), append(flags, "--conntrack-max-per-core=0")...)
	cmd.Env = append(os.Environ(), n.Env...)
	return cmd
}

// proxyToken creates the account and its role binding if they are missing, and
// returns a token that is valid for a day.
func (k *Kube) proxyToken(ctx context.Context) (string, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: proxyAccount}}
	accounts := k.Client.CoreV1().ServiceAccounts(metav1.NamespaceSystem)
	_, err := accounts.Create(ctx, account, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return "", err
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "kubeadm:node-proxier"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-proxier"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: proxyAccount,
			Namespace: metav1.NamespaceSystem}},
	}
	_, err = k.Client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return "", err
	}
	life := int64(24 * time.Hour / time.Second)
	r, err := accounts.CreateToken(ctx, proxyAccount, &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{ExpirationSeconds: &life}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return r.Status.Token, nil
}

// Running reports whether kube-proxy is running.
func (p *KubeProxy) Running() bool { return p.proc.Running() }

// Kill ends kube-proxy with SIGKILL. What it created in HNS or in the kernel
// stays.
func (p *KubeProxy) Kill() error {
	_, err := p.proc.Stop(context.Background(), syscall.SIGKILL)
	return err
}

// Log returns the output of every kube-proxy that the node has run.
func (p *KubeProxy) Log() string { return p.proc.Log() }
