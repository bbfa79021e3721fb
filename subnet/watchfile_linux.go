package subnet

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	inFile = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO
	inSelf = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	// inLost comes without being asked for: the watch has ended, or events were dropped.
	inLost = unix.IN_IGNORED | unix.IN_UNMOUNT | unix.IN_Q_OVERFLOW
)

// notifyDir hints at changes of path through its directory's inotify. rearm watches the directory that is there now,
// and tells whether it is another than before. Where the system has no inotify instance left, nothing is hinted.
func notifyDir(path string, hints chan<- struct{}) (rearm func() bool, stop func()) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return func() bool { return false }, func() {}
	}
	f := os.NewFile(uintptr(fd), "inotify") // the runtime's poller ends a Read when it is closed
	dir, base := filepath.Split(path)
	watch := -1
	rearm = func() bool {
		now, err := unix.InotifyAddWatch(fd, dir, inFile|inSelf|unix.IN_ONLYDIR)
		if err != nil {
			now = -1
		}
		was := watch
		watch = now
		if was == now {
			return false
		}
		if was >= 0 {
			_, _ = unix.InotifyRmWatch(fd, uint32(was)) // it may have gone with its directory
		}
		return true
	}
	go readEvents(f, base, hints)
	return rearm, func() { _ = f.Close() }
}

func readEvents(f *os.File, base string, hints chan<- struct{}) {
	buf := make([]byte, 64<<10)
	for {
		n, err := f.Read(buf)
		if err != nil {
			return
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			mask := binary.NativeEndian.Uint32(b[4:])
			end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
			name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:end]), "\x00")
			if name == base || mask&(inSelf|inLost) != 0 {
				poke(hints)
			}
			b = b[end:]
		}
	}
}
