package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Keys that this plugin adds to saved files: the name of the pod's interface, and, for
// messages, the pod ("namespace/name"). The upstream plugin and delegates ignore them as
// unknown keys.
const ifNameKey, podKey = "flannelIfName", "flannelPod"

// maxSaved is the maximum number of bytes read from a saved file.
const maxSaved = 1 << 20

// attachment is a pod's interface in a network. The delegate's configuration for
// it is saved in a file in dir:
//
//	ID            the first interface that is added, as in the upstream plugin
//	ID@INTERFACE  further interfaces, which may belong to other networks
//
// where ID is the container ID. For example, a pod 4f2c with eth0 and net1, added
// in this order, has the files 4f2c and 4f2c@net1.
type attachment struct {
	dir, id, ifName, network string
	pod                      string // "namespace/name"; "": not known
}

// firstPath and furtherPath are the two names that the saved file may have.
func (a attachment) firstPath() string   { return filepath.Join(a.dir, a.id) }
func (a attachment) furtherPath() string { return filepath.Join(a.dir, a.id+"@"+a.ifName) }

// tempPath returns the file that ADD writes before it renames it. The name is
// fixed, so that the next ADD or DEL can remove it if ADD was killed.
func (a attachment) tempPath() string {
	return filepath.Join(a.dir, "."+a.id+"@"+a.ifName+tempSuffix(a.network))
}

// tempSuffix ends the names of the temporary files of a network: by the name alone,
// GC recognizes the files of its network. It contains a checksum instead of the
// network's name, which may be longer than a file name.
func tempSuffix(network string) string {
	return fmt.Sprintf("@%08x.tmp", crc32.ChecksumIEEE([]byte(network)))
}

// savedFile is the saved configuration of an attachment, with a lock on Linux.
//
// The runtime may kill the plugin during ADD, but not the delegate, which goes on
// setting up the network. The runtime calls DEL next. DEL must not run before that
// delegate exits, or the pod's network would remain after DEL. Therefore ADD locks
// the file with flock, and the delegate and its child processes inherit the open
// file. The kernel releases the lock when the last of them exits, and DEL waits
// for that. For Windows see KillDelegateOnExit.
type savedFile struct {
	path string
	file *os.File // open and locked; nil on Windows, or if not locked
}

// release releases the lock. It does nothing on a nil *savedFile.
func (s *savedFile) release() {
	if s != nil && s.file != nil {
		_ = s.file.Close() // nothing to flush: it is only held for the lock
		s.file = nil
	}
}

// remove removes the file, then releases the lock.
func (s *savedFile) remove() error {
	defer s.release()
	return os.Remove(s.path)
}

// read returns the configuration in the file.
func (s *savedFile) read() (delegate, error) {
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

// readBounded reads a file, of a longer one only the beginning.
func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxSaved))
}

// parseSaved parses a file that this plugin or the upstream one saved.
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
	delete(d.conf, podKey)
	return d, nil
}

// readOwner returns the interface and the network that a saved file belongs to.
// Both are "" if the file is unreadable; ifName is "" if the upstream plugin wrote
// it. The error is fs.ErrNotExist or nil.
func readOwner(path string) (ifName, network string, err error) {
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

// savePath returns the file that ADD writes: the first one unless it belongs to
// another interface, or to another network if its interface is unknown.
func (a attachment) savePath() string {
	ifName, network, err := readOwner(a.firstPath())
	if err == nil && (ifName != "" && ifName != a.ifName || ifName == "" && network != "" && network != a.network) {
		return a.furtherPath()
	}
	return a.firstPath()
}

// find returns the file that DEL and CHECK read, "" if there is none.
func (a attachment) find() string {
	if _, err := os.Lstat(a.furtherPath()); err == nil {
		return a.furtherPath()
	}
	ifName, _, err := readOwner(a.firstPath())
	if errors.Is(err, fs.ErrNotExist) || ifName != "" && ifName != a.ifName {
		return ""
	}
	return a.firstPath() // also if it is not readable, or of the upstream plugin, which saves no interface
}

// save writes the file and returns it locked. First it waits for an earlier ADD of
// the same attachment whose delegate is still running.
func (a attachment) save(ctx context.Context, d delegate, wait time.Duration) (*savedFile, error) {
	if err := makeDir(a.dir); err != nil {
		return nil, err
	}
	previous := a.lock(ctx, wait) // nil: there is none; without a lock after wait, and ADD goes on
	defer previous.release()
	return a.write(a.savePath(), d)
}

// write replaces the file at path atomically and returns it locked.
func (a attachment) write(path string, d delegate) (*savedFile, error) {
	content := object{} // a copy: the delegate does not get our keys
	maps.Copy(content, d.conf)
	content.set(ifNameKey, a.ifName)
	if a.pod != "" {
		content.set(podKey, a.pod)
	}
	f, err := os.OpenFile(a.tempPath(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(encode(content))
	// The directory is not synced: host-local writes its file later, and file
	// systems do not persist that one without this one.
	if err = errors.Join(err, f.Sync()); err == nil {
		if f, err = moveIntoPlace(f, path); err == nil { // on Windows, f is closed and nil then
			return &savedFile{path, f}, nil
		}
	}
	return nil, errors.Join(err, f.Close(), os.Remove(a.tempPath()))
}

// lock finds and locks the saved file; it returns nil if there is none. If another
// process holds the lock, it waits for it, but no longer than wait. After that it
// returns the file without a lock. It removes the temporary file of an ADD that was
// killed before it called the delegate: without the lock, that may be the file of an
// ADD that is running.
func (a attachment) lock(ctx context.Context, wait time.Duration) *savedFile {
	path := a.find()
	if path == "" {
		_ = os.Remove(a.tempPath()) // usually there is none
		return nil
	}
	start := time.Now()
	for {
		f, locked := tryLock(path) // locked with a nil f: on Windows, or if the file is gone
		if locked {
			_ = os.Remove(a.tempPath())
		}
		if locked || time.Since(start) >= wait || ctx.Err() != nil {
			return &savedFile{path, f}
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// parseName splits the name of a saved file; ok is false if it is not one.
func parseName(name string) (id, ifName string, ok bool) {
	if strings.HasPrefix(name, ".") {
		return "", "", false
	}
	id, ifName, _ = strings.Cut(name, "@")
	return id, ifName, id != ""
}
