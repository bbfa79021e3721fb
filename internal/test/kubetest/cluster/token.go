package cluster

import (
	"context"
	"fmt"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Names in our manifest.
const (
	Namespace      = "kube-flannel"
	ServiceAccount = "flannel"
)

// FlannelPod returns the name of the pod that Token binds the tokens of a node
// to.
func FlannelPod(node string) string { return "kube-flannel-ds-" + node }

// Token returns a token as kubelet gets it for flannel's pod on a node: of the
// service account in the manifest, bound to the pod, and so to the node. It
// creates the pod if necessary. life must be at least ten minutes.
func (c *Cluster) Token(ctx context.Context, node string, life time.Duration) (string, error) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: FlannelPod(node), Namespace: Namespace,
			Labels: map[string]string{"app": "flannel"}},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: ServiceAccount, HostNetwork: true,
			Containers: []corev1.Container{{Name: "kube-flannel", Image: "flanneld"}},
		},
	}
	got, err := c.Client.CoreV1().Pods(Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		got, err = c.Client.CoreV1().Pods(Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	}
	if err != nil {
		return "", fmt.Errorf("create flannel's pod on %s: %w", node, err)
	}
	seconds := int64(life.Seconds())
	r, err := c.Client.CoreV1().ServiceAccounts(Namespace).CreateToken(ctx, ServiceAccount,
		&authv1.TokenRequest{Spec: authv1.TokenRequestSpec{
			ExpirationSeconds: &seconds,
			BoundObjectRef:    &authv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: got.Name, UID: got.UID},
		}}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("request a token for %s: %w", node, err)
	}
	return r.Status.Token, nil
}

// WithToken returns a client configuration that authenticates with the token.
func (c *Cluster) WithToken(token string) *rest.Config {
	config := rest.AnonymousClientConfig(c.Config)
	config.BearerToken = token
	return config
}

// Kubeconfig returns a kubeconfig whose user has the token in a file, which may
// change. server is a URL; empty means that of the cluster.
func (c *Cluster) Kubeconfig(server, tokenFile string) ([]byte, error) {
	if server == "" {
		server = c.Config.Host
	}
	k := api.NewConfig()
	k.Clusters["cluster"] = &api.Cluster{Server: server, CertificateAuthorityData: c.Config.CAData,
		TLSServerName: c.Config.ServerName}
	k.AuthInfos["flannel"] = &api.AuthInfo{TokenFile: tokenFile}
	k.Contexts["flannel"] = &api.Context{Cluster: "cluster", AuthInfo: "flannel"}
	k.CurrentContext = "flannel"
	return clientcmd.Write(*k)
}
