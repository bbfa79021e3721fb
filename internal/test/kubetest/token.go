package kubetest

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"flannel/internal/test/kubetest/cluster"
)

// Token returns a token of the service account in our manifest, bound to
// flannel's pod on the node and valid for an hour. The node must be registered.
func (s *Server) Token(node string) string {
	s.t.Helper()
	token, err := s.Cluster.Token(s.context(), node, time.Hour)
	s.check("create a token", err)
	return token
}

// LooseToken returns a token of the service account in our manifest that is not
// bound to a pod or node, as `kubectl create token` creates it.
func (s *Server) LooseToken() string {
	s.t.Helper()
	return s.token(cluster.ServiceAccount)
}

// token returns a token of a service account that is not bound to a pod or node.
func (s *Server) token(account string) string {
	s.t.Helper()
	r, err := s.Client.CoreV1().ServiceAccounts(cluster.Namespace).CreateToken(s.context(), account, &authv1.TokenRequest{}, metav1.CreateOptions{})
	s.check("create a token", err)
	return r.Status.Token
}

// Reader returns a token of a new service account whose only permission is this
// verb on nodes.
func (s *Server) Reader(name, verb string) string {
	s.t.Helper()
	ctx := s.context()
	_, err := s.Client.CoreV1().ServiceAccounts(cluster.Namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	s.check("create a service account", err)
	_, err = s.Client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{verb}}}}, metav1.CreateOptions{})
	s.check("create a role", err)
	_, err = s.Client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: cluster.Namespace}}}, metav1.CreateOptions{})
	s.check("bind a role", err)
	return s.token(name)
}

// ShortToken is like Token with another lifetime; negative means expired. The
// API issues no token for less than ten minutes. So ShortToken requests one, changes its
// times, and signs it again with the key of the server.
func (s *Server) ShortToken(node string, life time.Duration) string {
	s.t.Helper()
	parts := strings.Split(s.Token(node), ".") // a JSON Web Token: header, claims, signature
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	s.check("decode a token", err)
	claims := map[string]any{}
	s.check("decode a token", json.Unmarshal(text, &claims))
	now := time.Now()
	claims["exp"] = now.Add(life).Unix()
	claims["iat"], claims["nbf"] = now.Add(-time.Hour).Unix(), now.Add(-time.Hour).Unix()
	text, err = json.Marshal(claims)
	s.check("encode a token", err)
	signed := parts[0] + "." + base64.RawURLEncoding.EncodeToString(text)
	signature, err := s.sign([]byte(signed))
	s.check("sign a token", err)
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// sign returns the ES256 signature of RFC 7518 with the key that signs the
// server's tokens.
func (s *Server) sign(text []byte) ([]byte, error) {
	file, err := os.ReadFile(s.File("sa.key"))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(file)
	if block == nil {
		return nil, errors.New("no PEM block in sa.key")
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	r, v, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		return nil, err
	}
	signature := make([]byte, 64) // both numbers, with 32 bytes each
	r.FillBytes(signature[:32])
	v.FillBytes(signature[32:])
	return signature, nil
}

// Kubeconfig writes a kubeconfig with a token. It returns the paths of the kubeconfig and of
// the file with the token. The test may replace the token file: clients read it again within
// a minute. via is the host and port of a proxy to the server, or empty.
func (s *Server) Kubeconfig(token, via string) (kubeconfig, tokenFile string) {
	s.t.Helper()
	dir := s.t.TempDir()
	kubeconfig, tokenFile = filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "token")
	server := ""
	if via != "" {
		host, _, err := net.SplitHostPort(via)
		s.check("read the proxy's address", err)
		if host != "127.0.0.1" {
			s.t.Fatalf("the certificate of the server is not valid for a proxy at %s", host)
		}
		server = "https://" + via
	}
	text, err := s.Cluster.Kubeconfig(server, tokenFile)
	s.check("create a kubeconfig", err)
	s.check("write a kubeconfig", os.WriteFile(kubeconfig, text, 0o600))
	s.check("write a token", os.WriteFile(tokenFile, []byte(token), 0o600))
	return kubeconfig, tokenFile
}

// As returns a client that authenticates with the token.
func (s *Server) As(token string) kubernetes.Interface {
	s.t.Helper()
	client, err := kubernetes.NewForConfig(s.WithToken(token))
	s.check("create a client", err)
	return client
}
