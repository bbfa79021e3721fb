package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/doctor"
	"flannel/pkg/status"
)

// planted puts secrets everywhere where some could be; each has the word pl4nted in it.
const planted = `
	mkdir -p /run/flannel /run/conf
	printf 'FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.3.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n' > /run/flannel/subnet.env
	echo pl4nted-wireguard-key= > /run/flannel/wgkey
	cat > /run/net-conf.json <<-'END'
		{"Network":"10.5.0.0/16","Backend":{"Type":"wireguard","PSK":"pl4nted-psk","OtherSecret":"x\u0070l4nted\"q","Inner":{"token":["pl4nted-1",7]}}}
	END
	cat > /run/conf/10-flannel.conflist <<-'END'
		{"plugins":[{"type":"flannel","password":"pl4nted-cni","note":"of the user: pl4nted-etcd","pem":"-----BEGIN EC PRIVATE KEY-----\npl4nted-2\n-----END EC PRIVATE KEY-----\n"},
		 {"type":"other","jwt":"eyJhbGciOiJub25lIn0.pl4nted-3.pl4nted-4","url":"https://user:pl4nted-5@example.com/","inner":"{\"secretKey\":\"pl4nted-6\"}"}]}
	END
	printf 'not JSON: password: "pl4nted-yaml"\nenv:\n- name: AWS_SECRET_ACCESS_KEY\n  value: pl4nted-a words\n' > /run/conf/99-broken.conf
	echo '{"type":"x","env":[{"name":"X_TOKEN","value":"pl4nted-b words"}],"args":["-etcd-password","pl4nted-7","--passwd=pl4nted-8"],"ca":"LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVpl4nted9=="}' > /run/conf/50-env.conf
	printf 'users:\n- name: x\n  user:\n    token: pl4nted-kubeconfig\n    client-key-data: LS0tLS1CRUdJTiBwbDRudGVk\n- name: other\n  user:\n    tokenFile: token.txt\n    client-key: /run/client.key\n    exec: {apiVersion: client.authentication.k8s.io/v1, command: a, args: [--token, pl4nted-exec], env: [{name: A_PASSWORD, value: pl4nted of exec}]}\n' > /run/kubeconfig
	echo opaque-pl4nted-token > /run/token.txt
	echo an-unusual-pl4nted-key-without-a-header > /run/client.key
	iptables -A FORWARD -m comment --comment "of the daemon: x-pl4nted-argument, x-pl4nted of the daemon; http://u:p@ss-pl4nted-11@etcd/ http://v:pl4nted-12@w/" -j ACCEPT
	iptables -A FORWARD -m comment --comment "by itself: pl4nted-exec pl4nted of exec opaque-pl4nted-token an-unusual-pl4nted-key-without-a-header xpl4nted\"q" -j ACCEPT
	iptables -A FORWARD -m comment --comment "token=pl4nted-rule and pl4nted-etcd and pl4nted-psk" -j ACCEPT
	iptables -A FORWARD -m comment --comment "harmless" -j ACCEPT`

func TestBundle(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if out, err := exec.Command("sh", "-ec", planted).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		board := &status.Board{}
		board.Add(status.OfProcess, func(r *status.Report) { r.Store = "kubernetes" })
		board.Waiting("Authorization: Bearer pl4nted-bearer; key pl4nted-wireguard-key=; https://a:pl4nted-z@etcd:2379; pl4nted-kubeconfig " +
			"cGw0bnRlZC1ldGNk --etcd-password pl4nted-flag")
		go status.Keep(ctx, "/run/flannel/flanneld.sock", status.Handler(board, func() []byte { return []byte("key pl4nted-wireguard-key=\n") }, func() int { return 0 }, http.NotFoundHandler()), slog.New(slog.DiscardHandler)) //nolint:errcheck // it returns nil
		eventually.Nil(t, "the socket is there", func() error { _, err := os.Stat("/run/flannel/flanneld.sock"); return err })
		t.Setenv("FLANNELD_ETCD_PASSWORD", "pl4nted-etcd")
		t.Setenv("FLANNELD_SOMETHING_TOKEN", "one and pl4nted-variable")
		t.Setenv("FLANNELD_OTHER_ENDPOINTS", "http://me:pl4nted-x@127.0.0.1:1,http://me:pl4@nted-pl4nted-y@127.0.0.1:2")
		t.Setenv("FLANNELD_OTHER_URL", "https://me:pl4nted-13/pl4nted-14#pl4nted-15?pl4nted-16@host") // not percent-encoded
		daemon := exec.Command("/bin/sh", "-c", "read end", "--etcd-password", "x-pl4nted-argument")
		daemon.Args[0] = "flanneld" // as one that was started with what the doctor is not told
		daemon.Env = []string{"ETCD_PASSWORD=x-pl4nted of the daemon"}
		in, err := daemon.StdinPipe()
		if err == nil {
			err = daemon.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = in.Close(); _ = daemon.Wait() }()
		t.Setenv("NODE_NAME", "node1")
		var stdout, stderr bytes.Buffer
		args := []string{"--kube-subnet-mgr", "--kubeconfig-file=/run/kubeconfig", "--net-config-path=/run/net-conf.json", "--etcd-username=u",
			"doctor", "--json", "--timeout=1m", "--cni-conf-dir=/run/conf", "--bundle=/run/bundle.tar.gz"}
		if code := run(t.Context(), process{args: args, environ: os.Environ(), stdout: &stdout, stderr: &stderr}); code != exitNotReady {
			t.Fatalf("exit code %d\n%s\n%s", code, &stdout, &stderr)
		}
		var results []doctor.Result
		if err := json.Unmarshal(stdout.Bytes(), &results); err != nil || len(results) != len(doctor.Checks()) {
			t.Errorf("%d results, %v", len(results), err)
		}
		if info, err := os.Stat("/run/bundle.tar.gz"); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
		files := unpackFile(t, "/run/bundle.tar.gz")
		for name, text := range files {
			if strings.Contains(text, "pl4nted") || strings.Contains(text, "cGw0bnRlZC1ldGNk") || strings.Contains(text, "LS0tLS1CRUdJ") || strings.Contains(text, "]]") {
				t.Errorf("%s has a secret:\n%s", name, text)
			}
		}
		for name, want := range map[string]string{
			"config/subnet.env": "FLANNEL_MTU=1450", "config/net-conf.json": `"Type": "wireguard"`, "listings/iptables.txt": "--comment harmless -j ACCEPT",
			"environment.txt": "NODE_NAME=node1", "config/cni/10-flannel.conflist": `"type": "other"`, "config/cni/99-broken.conf": "not JSON",
			"status.json": "https://[redacted]@etcd:2379", "doctor.txt": "FL103", "doctor.json": `"FL103"`, "snapshot.json": `"subnetFile": "/run/flannel/subnet.env"`,
			"listings/links.txt": "lo:", "listings/nft.txt": "", "metrics.txt": "404", "log-recent.txt": "key [redacted]", "version.txt": "dev", "os-release.txt": "NAME",
			"config/cni/50-env.conf": `"X_TOKEN"`,
		} {
			if text, there := files[name]; !there || !strings.Contains(text, want) {
				t.Errorf("%s (%t) without %q:\n%s", name, there, want, text)
			}
		}
		// On a read-only root, to standard output.
		stdout.Reset()
		stderr.Reset()
		toStdout := slices.Replace(slices.Clone(args), len(args)-1, len(args), "--bundle=-")
		if code := run(t.Context(), process{args: toStdout, environ: os.Environ(), stdout: &stdout, stderr: &stderr}); code != exitNotReady {
			t.Fatalf("to standard output: exit code %d\n%s", code, &stderr)
		}
		if again := unpack(t, &stdout); len(again) != len(files) || again["config/subnet.env"] != files["config/subnet.env"] {
			t.Errorf("to standard output: %d files, in the file %d", len(again), len(files))
		}
		if !strings.Contains(stderr.String(), `"FL103"`) {
			t.Errorf("no results beside a bundle on standard output:\n%s", &stderr)
		}
		stderr.Reset()
		if code := run(t.Context(), process{args: args, environ: os.Environ(), stdout: io.Discard, stderr: &stderr}); code != exitError || !strings.Contains(stderr.String(), "/run/bundle.tar.gz") {
			t.Errorf("a second bundle of that name: %d, %s", code, &stderr)
		}
	})
}
