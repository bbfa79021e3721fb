package cniplugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// ifNameKey is what a saved file of ours has beside the delegate's configuration: the interface that it belongs to.
// Plugins ignore it, as they do all that they do not know.
const ifNameKey = "flannelIfName"

// maxSaved bounds what is read of a saved file, in bytes.
const maxSaved = 1 << 20

// attachment is a pod's interface, and where the delegate's configuration for it is saved: in a file with the name of
// the container's ID. A container's further interfaces have files named ID@INTERFACE, since they may be of other
// networks with the same directory.
type attachment struct{ dir, id, ifName, network string }

func (a attachment) first() string   { return filepath.Join(a.dir, a.id) }
func (a attachment) further() string { return filepath.Join(a.dir, a.id+"@"+a.ifName) }

// temporary is always the same name, so that the next ADD or DEL finds what a killed one left.
func (a attachment) temporary() string { return filepath.Join(a.dir, "."+a.id+"@"+a.ifName+".tmp") }

// saved is a saved file; nil is none.
//
// While ADD runs, its file is locked, and the delegate and its children inherit the lock: it lasts until the last of
// them has ended, even if the plugin itself is killed. DEL waits for it, so that nothing is added after it has deleted.
type saved struct {
	path string
	file *os.File // open and locked; nil on Windows, and where it could not be opened
}

func (s *saved) release() {
	if s != nil && s.file != nil {
		_ = s.file.Close() // nothing is written through it any more
		s.file = nil
	}
}

// remove removes the file while it is still locked.
func (s *saved) remove() error {
	defer s.release()
	return os.Remove(s.path)
}

func (s *saved) read() (delegate, error) {
	raw, err := readBounded(s.path)
	if err != nil {
		return delegate{}, fmt.Errorf("read saved configuration: %w", err)
	}
	d, err := parseSaved(raw)
	if err != nil {
		return delegate{}, fmt.Errorf("saved configuration %s: %w", s.path, err)
	}
	return d, nil
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxSaved))
}

// parseSaved reads what we or flannel's plugin saved.
func parseSaved(raw []byte) (delegate, error) {
	d := delegate{}
	if err := json.Unmarshal(raw, &d.conf); err != nil {
		return delegate{}, err
	}
	d.Type = d.conf.text("type")
	if err := checkType(d.Type); err != nil {
		return delegate{}, fmt.Errorf("type: %w", err)
	}
	if d.conf.text("name") == "" {
		return delegate{}, errors.New("name: missing")
	}
	delete(d.conf, ifNameKey)
	return d, nil
}

// owner returns which interface and which network a saved file is of; both are "" if it cannot be read, and ifName if
// flannel's plugin wrote it.
func owner(path string) (ifName, network string, err error) {
	raw, err := readBounded(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", err
	}
	var content object
	if err != nil || json.Unmarshal(raw, &content) != nil {
		return "", "", nil
	}
	return content.text(ifNameKey), content.text("name"), nil
}

// path returns where ADD saves: in the first file unless another interface has it.
func (a attachment) path() string {
	ifName, network, err := owner(a.first())
	if err == nil && (ifName != "" && ifName != a.ifName || ifName == "" && network != "" && network != a.network) {
		return a.further()
	}
	return a.first()
}

// find returns the file that DEL reads, "" if there is none.
func (a attachment) find() string {
	if _, err := os.Lstat(a.further()); err == nil {
		return a.further()
	}
	ifName, _, err := owner(a.first())
	if errors.Is(err, fs.ErrNotExist) || ifName != "" && ifName != a.ifName {
		return ""
	}
	return a.first()
}

// save writes the file in one step and returns it locked. What a former ADD of the same attachment left running is
// waited for.
func (a attachment) save(ctx context.Context, d delegate, wait time.Duration) (*saved, error) {
	if err := os.MkdirAll(a.dir, 0o700); err != nil {
		return nil, err
	}
	former := a.lock(ctx, wait)
	defer former.release()
	return a.write(a.path(), d)
}

func (a attachment) write(path string, d delegate) (*saved, error) {
	content := object{}
	for k, v := range d.conf {
		content[k] = v
	}
	content.set(ifNameKey, a.ifName)
	f, err := os.OpenFile(a.temporary(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(encode(content))
	// The directory need not be synced: what host-local writes later into its own, no file system keeps without this.
	if err = errors.Join(err, f.Sync()); err == nil {
		if f, err = place(f, path); err == nil {
			return &saved{path, f}, nil
		}
	}
	return nil, errors.Join(err, f.Close(), os.Remove(a.temporary()))
}

// lock finds the saved file, nil if there is none, and waits until no other process has it locked, or for as long as wait.
func (a attachment) lock(ctx context.Context, wait time.Duration) *saved {
	_ = os.Remove(a.temporary()) // of an ADD that was killed before it called anything
	path := a.find()
	if path == "" {
		return nil
	}
	began := time.Now()
	for {
		f, locked := tryLock(path)
		if locked || time.Since(began) >= wait || ctx.Err() != nil {
			return &saved{path, f}
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// parseName splits the name of a saved file. ok is false for other files.
func parseName(name string) (id, ifName string, ok bool) {
	if strings.HasPrefix(name, ".") {
		return "", "", false
	}
	id, ifName, _ = strings.Cut(name, "@")
	return id, ifName, id != ""
}
