// Package bundle packs what a maintainer needs to see of a node into one file, without secrets.
package bundle

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"flannel/pkg/doctor"
	"flannel/pkg/probe"
	"flannel/pkg/redact"
	"flannel/pkg/status"
	"flannel/pkg/version"
	"flannel/pkg/winservice"
)

// Options say where this node's daemon has what belongs into a bundle.
type Options struct {
	SubnetFile string
	LogFile    string // "" if its log goes elsewhere
	// VIPFile and JournalFile are as in probe.Options.
	VIPFile, JournalFile string
	// NetConf reads the raw network configuration.
	NetConf func(context.Context) ([]byte, error)

	// Password, and the contents of KeyFile and Kubeconfig, shall not be in the bundle.
	Password            redact.Secret
	KeyFile, Kubeconfig string
}

// listings are the commands whose output a maintainer asks for first; each only lists.
func listings() map[string][]string {
	if runtime.GOOS == "windows" {
		return map[string][]string{"version.txt": {"cmd", "/c", "ver"}, "ipconfig.txt": {"ipconfig", "/all"}, "routes.txt": {"route", "print"},
			"services.txt": {"sc", "query", "hns"}, "processes.txt": {"tasklist"},
			"events.txt": {"wevtutil", "qe", "Application", "/q:*[System[Provider[@Name='" + winservice.Name + "']]]", "/c:500", "/rd:true", "/f:text"}}
	}
	return map[string][]string{
		"links.txt": {"ip", "-d", "-s", "link"}, "addresses.txt": {"ip", "address"}, "rules.txt": {"ip", "rule"},
		"routes.txt": {"ip", "route", "show", "table", "all"}, "routes6.txt": {"ip", "-6", "route", "show", "table", "all"},
		"nexthops.txt": {"ip", "nexthop"}, "neighbours.txt": {"ip", "neigh"}, "fdb.txt": {"bridge", "fdb"},
		"iptables.txt": {"iptables-save", "-c"}, "ip6tables.txt": {"ip6tables-save", "-c"}, "nft.txt": {"nft", "list", "ruleset"},
		"journal.txt": {"journalctl", "-u", "flanneld", "--no-pager", "-n", "2000"},
	}
}

const (
	listWithin = 10 * time.Second // bounds each listing
	maxListing = 8 << 20          // bytes of one
)

// Write packs a new file at path that only its owner may read.
func Write(ctx context.Context, o Options, path string, s doctor.Snapshot, results []doctor.Result) error {
	files, secrets := bundled(ctx, o, s, results)
	if ctx.Err() != nil {
		return errors.New("bundle: interrupted; nothing was packed")
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("bundle: %s is there already; give another name", path)
	}
	if err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	zip := gzip.NewWriter(f)
	archive := tar.NewWriter(zip)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text := secrets.Clean(files[name])
		err = archive.WriteHeader(&tar.Header{Name: "flannel-bundle/" + name, Mode: 0o600, Size: int64(len(text)), ModTime: s.At})
		if err == nil {
			_, err = archive.Write(text)
		}
		if err != nil {
			break
		}
	}
	if err = errors.Join(err, archive.Close(), zip.Close(), f.Close()); err != nil {
		return fmt.Errorf("bundle: %w", errors.Join(err, os.Remove(path)))
	}
	return nil
}

// bundled gathers the texts by name, and the secrets that may be in them.
func bundled(ctx context.Context, o Options, s doctor.Snapshot, results []doctor.Result) (map[string][]byte, *redact.Redactor) {
	files := map[string][]byte{"version.txt": []byte(version.String() + "\n")}
	add := func(name string, v any) {
		if raw, err := json.MarshalIndent(v, "", "  "); err == nil {
			files[name] = raw
		}
	}
	add("doctor.json", results)
	add("snapshot.json", s)
	var text bytes.Buffer
	_ = doctor.Print(&text, results) // a buffer takes everything
	files["doctor.txt"] = text.Bytes()

	ctx, cancel := context.WithTimeout(ctx, 2*listWithin)
	defer cancel()
	for what, name := range map[string]string{"/status": "status.json", "/metrics": "metrics.txt"} {
		raw, err := status.Get(ctx, status.Socket(o.SubnetFile), what)
		files[name] = orError(raw, err)
	}
	for name, path := range packed(o) {
		raw, err := tail(path, maxListing)
		if files[name] = orError(raw, err); errors.Is(err, fs.ErrNotExist) {
			files[name] = []byte("there is no " + path + "\n")
		}
	}
	for name, text := range probe.Documents(ctx, listWithin) {
		files["listings/"+name] = text
	}
	for _, f := range s.CNI.Value.Files {
		files["config/cni/"+f.Name] = []byte(f.Text)
	}
	files["config/net-conf.json"] = networkConfig(ctx, o.NetConf)
	files["environment.txt"] = environment(os.Environ())
	secrets := secretsKnown(o, s, files)
	if command, env, err := winservice.Settings(); err == nil {
		secrets.AddSettings(command, env)
		shown, _ := redact.Args(command)
		add("config/service.json", map[string][]string{"command": shown, "environment": redact.Environ(env)})
	}
	list(ctx, files)
	return files, secrets
}

// packed are the files that are packed as they are, but for secrets.
func packed(o Options) map[string]string {
	all := map[string]string{"config/subnet.env": o.SubnetFile}
	if o.LogFile != "" {
		all["log.txt"] = o.LogFile
	}
	if runtime.GOOS != "windows" {
		all["os-release.txt"] = "/etc/os-release"
		return all
	}
	all["config/hns.json"] = o.JournalFile
	all["config/source-vip.json"] = o.VIPFile
	all["log.txt"] = cmp.Or(o.LogFile, winservice.LogFile)
	return all
}

// tail reads a file, or the last lines of a long one: whole ones, for half a line may hide that it holds a secret.
func tail(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was read
	info, err := f.Stat()
	if err != nil || info.Size() <= most {
		raw, readErr := io.ReadAll(io.LimitReader(f, most))
		return raw, cmp.Or(err, readErr)
	}
	if _, err := f.Seek(info.Size()-most, io.SeekStart); err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(io.LimitReader(f, most))
	_, lines, _ := bytes.Cut(raw, []byte("\n"))
	return lines, err
}

func orError(raw []byte, err error) []byte {
	if err != nil {
		return []byte(err.Error() + "\n")
	}
	return raw[:min(len(raw), maxListing)]
}

// networkConfig is the raw configuration, or why it cannot be had soon.
func networkConfig(ctx context.Context, read func(context.Context) ([]byte, error)) []byte {
	ctx, cancel := context.WithTimeout(ctx, listWithin/2)
	defer cancel()
	return orError(read(ctx))
}

// environment is what flanneld reads of it. A value that is secret by its name may have blanks, so all of it goes here.
func environment(environ []string) []byte {
	var b bytes.Buffer
	for _, e := range slices.Sorted(slices.Values(redact.Environ(environ))) {
		name, _, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, "FLANNELD_") || slices.Contains([]string{"NODE_NAME", "POD_NAME", "POD_NAMESPACE", "WIREGUARD_KEY_FILE"}, name) {
			fmt.Fprintln(&b, e)
		}
	}
	return b.Bytes()
}

// list runs the listings side by side; one that fails leaves its error.
func list(ctx context.Context, files map[string][]byte) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for name, command := range listings() {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, listWithin)
			defer cancel()
			cmd := exec.CommandContext(ctx, command[0], command[1:]...)
			cmd.WaitDelay = time.Second
			out, err := cmd.CombinedOutput()
			if err != nil {
				out = fmt.Appendf(out, "%s: %v\n", strings.Join(command, " "), err)
			}
			mu.Lock()
			defer mu.Unlock()
			files["listings/"+name] = orError(out, nil)
		})
	}
	all.Wait()
}
