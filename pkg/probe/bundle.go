// This file and secrets.go make the bundle, for the command doctor. WriteBundle writes an
// archive (.tar.gz) with the state of a node for a maintainer, without secrets.

package probe

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
	"runtime"
	"slices"
	"strings"

	"flannel/pkg/conf"
	"flannel/pkg/doctor"
	"flannel/pkg/status"
	"flannel/pkg/windows/service"
)

// BundleOptions are the paths and the secrets of the daemon on this node.
type BundleOptions struct {
	SubnetFile string
	LogFile    string // "": the daemon has no log file
	// VIPFile and JournalFile are as in probe.Options.
	VIPFile, JournalFile string
	// NetConf reads the raw network configuration.
	NetConf func(context.Context) ([]byte, error)

	// Password, and the contents of KeyFile and Kubeconfig, are kept out of the bundle.
	Password            conf.Secret
	KeyFile, Kubeconfig string
}

// WriteBundleFile creates the archive at path, which must not exist. Only its owner may
// read it.
func WriteBundleFile(ctx context.Context, o BundleOptions, path string, s doctor.Snapshot, results []doctor.Result) error {
	var archive bytes.Buffer
	if err := WriteBundle(ctx, o, &archive, s, results); err != nil {
		return err // an interrupted run leaves no file
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("bundle: %s already exists; choose another name", path)
	}
	if err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	// A truncated archive could be shared as if it were whole, so it is removed.
	_, err = f.Write(archive.Bytes())
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("bundle: %w", errors.Join(err, os.Remove(path)))
	}
	return nil
}

// WriteBundle writes the archive to w. s and results are what the doctor has read and
// found.
func WriteBundle(ctx context.Context, o BundleOptions, w io.Writer, s doctor.Snapshot, results []doctor.Result) error {
	// Everything is collected first: secrets that are found in one file are removed
	// from all.
	files, secrets := collect(ctx, o, s, results)
	if ctx.Err() != nil {
		return errors.New("bundle: interrupted")
	}
	zip := gzip.NewWriter(w)
	archive := tar.NewWriter(zip)
	var err error
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text := secrets.clean(files[name])
		err = archive.WriteHeader(&tar.Header{Name: "flannel-bundle/" + name, Mode: 0o600, Size: int64(len(text)), ModTime: s.At})
		if err == nil {
			_, err = archive.Write(text)
		}
		if err != nil {
			break
		}
	}
	if err = errors.Join(err, archive.Close(), zip.Close()); err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	return nil
}

// collect returns the contents of all files by name, and a redactor with the secrets
// that may be in them. What cannot be read has its error as its content, and does not
// keep the rest from being collected: a bundle is needed when something is broken.
//
//	doctor.txt, doctor.json, snapshot.json   what the doctor has read and found
//	status.json, metrics.txt                 from the daemon
//	log-recent.txt, log.txt                  its log: the lines in its memory, its file
//	config/                                  its files, searched for secrets by their keys
//	listings/                                output of commands, and of the IP stack and HNS
func collect(ctx context.Context, o BundleOptions, s doctor.Snapshot, results []doctor.Result) (map[string][]byte, *redactor) {
	files := map[string][]byte{"version.txt": []byte(s.Version + "\n")}
	add := func(name string, v any) {
		if raw, err := json.MarshalIndent(v, "", "  "); err == nil { // it does not fail for these types
			files[name] = raw
		}
	}
	add("doctor.json", results)
	add("snapshot.json", s)
	var text bytes.Buffer
	_ = doctor.Print(&text, results, true) // true: also what is ok; writing to a buffer does not fail
	files["doctor.txt"] = text.Bytes()

	// Once for what the daemon, the store and HNS answer, and once for the commands.
	ctx, cancel := context.WithTimeout(ctx, 2*listWithin)
	defer cancel()
	for path, name := range map[string]string{"/status": "status.json", "/metrics": "metrics.txt", status.LogPath: "log-recent.txt"} {
		files[name] = orError(status.Get(ctx, status.Socket(o.SubnetFile), path))
	}
	for name, path := range copiedFiles(o) {
		raw, err := tail(path, maxListing) // 8 MiB
		if files[name] = orError(raw, err); errors.Is(err, fs.ErrNotExist) {
			files[name] = []byte(path + " does not exist\n")
		}
	}
	for name, text := range documents(ctx, listWithin) { // of HNS and the IP stack; none on Linux
		files["listings/"+name] = text
	}
	for _, f := range s.CNI.Value.Files {
		files["config/cni/"+f.Name] = []byte(cmp.Or(f.Text, s.CNI.Value.Unread[f.Name]))
	}
	// Reading from etcd waits for it until the context ends, which must leave time for
	// the listings.
	netConfCtx, cancelNetConf := context.WithTimeout(ctx, listWithin/2)
	defer cancelNetConf()
	files["config/net-conf.json"] = orError(o.NetConf(netConfCtx))
	files["environment.txt"] = environment(os.Environ())
	// Only config/ is searched for more secrets, so the listings may come afterwards.
	secrets := knownSecrets(o, s, files)
	if command, env, err := service.Settings(); err == nil { // of the daemon as a Windows service, if there is one
		secrets.addSettings(command, env)
		shown, _ := conf.RedactArgs(command)
		add("config/service.json", map[string][]string{"command": shown, "environment": redactEnviron(env)})
	}
	lister{runtime.GOOS, program}.runAll(ctx, files) // adds those below listings/
	return files, secrets
}

// copiedFiles returns the paths of the files that are copied, by their names in the
// archive.
func copiedFiles(o BundleOptions) map[string]string {
	paths := map[string]string{"config/subnet.env": o.SubnetFile}
	if o.LogFile != "" {
		paths["log.txt"] = o.LogFile
	}
	if runtime.GOOS != "windows" {
		paths["os-release.txt"] = "/etc/os-release"
		return paths
	}
	paths["config/hns.json"] = o.JournalFile
	paths["config/source-vip.json"] = o.VIPFile
	paths["log.txt"] = cmp.Or(o.LogFile, service.LogFile)
	return paths
}

// tail reads the last lines of a file, at most limit bytes. It returns only whole
// lines: in a part of one, a secret might not be recognized.
func tail(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()                        //nolint:errcheck // it was read
	start, _ := f.Seek(-limit, io.SeekEnd) // a shorter file stays at its beginning, with an error
	raw, err := io.ReadAll(io.LimitReader(f, limit))
	if start > 0 {
		_, raw, _ = bytes.Cut(raw, []byte("\n"))
	}
	return raw, err
}

// orError returns the beginning of raw, or the text of err.
func orError(raw []byte, err error) []byte {
	if err != nil {
		return []byte(err.Error() + "\n")
	}
	return raw[:min(len(raw), maxListing)]
}

// environment returns the variables that flanneld reads. The values of secret ones
// are replaced here and not in the text, because a value may contain blanks.
func environment(environ []string) []byte {
	var b bytes.Buffer
	for _, e := range slices.Sorted(slices.Values(redactEnviron(environ))) {
		name, _, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, "FLANNELD_") || slices.Contains([]string{"NODE_NAME", "POD_NAME", "POD_NAMESPACE", "WIREGUARD_KEY_FILE"}, name) {
			fmt.Fprintln(&b, e)
		}
	}
	return b.Bytes()
}
