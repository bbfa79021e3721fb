package sandbox

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// child is the variable that tells a test process what to do. The test needs
// processes of its own because a filter cannot be removed.
const child = "SANDBOX_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(child) {
	case "":
		os.Exit(m.Run())
	case "first":
		os.Exit(confined())
	default: // a child of a confined process
		fmt.Println("grandchild:", openSocket(unix.AF_INET))
	}
}

func openSocket(family int) error {
	fd, err := unix.Socket(family, unix.SOCK_STREAM, 0)
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}

// confined installs the filter and prints the errors of what must fail then, in
// threads that existed before, and in a child.
func confined() int {
	ask, answers := make(chan struct{}), make(chan error)
	for range 8 {
		go func() {
			runtime.LockOSThread()
			<-ask
			answers <- errors.Join(openSocket(unix.AF_INET), openSocket(unix.AF_INET6), openSocket(unix.AF_UNIX), openSocket(unix.AF_NETLINK))
		}()
	}
	if err := openSocket(unix.AF_INET); err != nil {
		fmt.Println("before:", err)
		return 1
	}
	if err := NoNetwork(); err != nil {
		fmt.Println("filter:", err)
		return 1
	}
	close(ask)
	for range 8 {
		err := <-answers
		fmt.Println("thread:", strings.ReplaceAll(fmt.Sprint(err), "\n", ", "))
	}
	_, err := net.Dial("udp", "127.0.0.1:9")
	fmt.Println("dial:", errors.Is(err, unix.EPERM))
	_, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, 0, 0)
	fmt.Println("io_uring:", errno)
	next := exec.Command("/proc/self/exe")
	next.Env = []string{child + "=second"}
	out, err := next.CombinedOutput()
	fmt.Print(string(out), "files: ", errors.Join(err, os.WriteFile(os.DevNull, nil, 0)), "\n")
	return 0
}

func TestNoNetwork(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{child + "=first"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	denied := unix.EPERM.Error()
	four := strings.Join([]string{denied, denied, denied, denied}, ", ")
	want := strings.Repeat("thread: "+four+"\n", 8) + "dial: true\nio_uring: " + denied + "\ngrandchild: " + denied + "\nfiles: <nil>\n"
	if string(out) != want {
		t.Errorf("got\n%swant\n%s", out, want)
	}
}

// There is a filter for every architecture that we release.
func TestArchitectures(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64", "arm", "riscv64", "s390x", "ppc64le"} {
		if _, ok := abis[arch]; !ok {
			t.Errorf("%s has no filter", arch)
		}
	}
}
