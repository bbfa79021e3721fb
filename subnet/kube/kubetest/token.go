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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"flannel/subnet/kube/kubetest/cluster"
)

// DeleteNode deletes the Node object. Pods bound to it stay: no controller takes them away here.
func (s *Server) DeleteNode(name string) {
	s.t.Helper()
	s.check("delete node", s.Client.CoreV1().Nodes().Delete(s.context(), name, metav1.DeleteOptions{}))
}

// Token is a token of our manifest's service account, bound to flannel's pod on the node; it lasts an hour. The node
// must be registered.
func (s *Server) Token(node string) string {
	s.t.Helper()
	token, err := s.Cluster.Token(s.context(), node, time.Hour)
	s.check("make a token", err)
	return token
}

// LooseToken is a token of our manifest's service account that is bound to no pod and no node, as one that somebody made
// by `kubectl create token`.
func (s *Server) LooseToken() string {
	s.t.Helper()
	r, err := s.Client.CoreV1().ServiceAccounts(cluster.Namespace).CreateToken(s.context(), cluster.ServiceAccount, &authv1.TokenRequest{}, metav1.CreateOptions{})
	s.check("make a token", err)
	return r.Status.Token
}

// ShortToken is a Token that ends after life, negative: it has ended. The API gives none for less than ten minutes; this
// one is signed with the server's own key.
func (s *Server) ShortToken(node string, life time.Duration) string {
	s.t.Helper()
	parts := strings.Split(s.Token(node), ".")
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

// sign makes the signature ES256 of RFC 7518 with the key of the server's tokens.
func (s *Server) sign(text []byte) ([]byte, error) {
	file, err := os.ReadFile(s.File("sa.key"))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(file)
	if block == nil {
		return nil, errors.New("sa.key is no PEM file")
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
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	v.FillBytes(signature[32:])
	return signature, nil
}

// Kubeconfig writes a kubeconfig of the token's owner and returns its path, and that of the file with the token alone,
// which may be replaced: clients read it again within a minute. via is the host and port of a proxy; empty: none.
func (s *Server) Kubeconfig(token, via string) (kubeconfig, tokenFile string) {
	s.t.Helper()
	dir := s.t.TempDir()
	kubeconfig, tokenFile = filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "token")
	server := ""
	if via != "" {
		host, _, err := net.SplitHostPort(via)
		s.check("read the proxy's address", err)
		if host != "127.0.0.1" {
			s.t.Fatalf("the server's certificate is not good for a proxy at %s", host)
		}
		server = "https://" + via
	}
	text, err := s.Cluster.Kubeconfig(server, tokenFile)
	s.check("make a kubeconfig", err)
	s.check("write a kubeconfig", os.WriteFile(kubeconfig, text, 0o600))
	s.check("write a token", os.WriteFile(tokenFile, []byte(token), 0o600))
	return kubeconfig, tokenFile
}

// As is a client of the token's owner.
func (s *Server) As(token string) kubernetes.Interface {
	s.t.Helper()
	client, err := kubernetes.NewForConfig(s.WithToken(token))
	s.check("make a client", err)
	return client
}
