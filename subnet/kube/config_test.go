package kube

import (
	"errors"
	"os"
	"testing"

	"flannel/internal/test/eventually"
	"flannel/internal/test/logtest"
)

func TestConfigMapIsSwapped(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// As kubelet mounts it: the file is a link into ..data, which is a link to a directory that is replaced as a whole.
	swap := func(version, text string) {
		t.Helper()
		err := errors.Join(os.Mkdir(dir+"/.."+version, 0o755), os.WriteFile(dir+"/.."+version+"/net-conf.json", []byte(text), 0o644),
			os.Symlink(".."+version, dir+"/..data_tmp"), os.Rename(dir+"/..data_tmp", dir+"/..data"))
		if err != nil {
			t.Fatal(err)
		}
	}
	var log logtest.Log
	m := &Manager{o: Options{NetConf: dir + "/net-conf.json"}, log: log.Logger()}
	got := make(chan string, 10)
	go m.WatchConfig(t.Context(), func(raw []byte) { got <- string(raw) }) //nolint:errcheck // it ends with the test
	eventually.True(t, "a missing file is said", func() bool { return log.Count("cause="+causeNoConfig) == 1 })
	swap("1", "one")
	if err := os.Symlink("..data/net-conf.json", dir+"/net-conf.json"); err != nil {
		t.Fatal(err)
	}
	expect := func(want string) {
		t.Helper()
		if s := <-got; s != want {
			t.Errorf("got %q, want %q", s, want)
		}
	}
	expect("one")
	swap("2", "two")
	expect("two")
	swap("3", "two") // the same again
	if err := os.Remove(dir + "/net-conf.json"); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "a deleted file is said", func() bool { return log.Count("cause="+causeConfigGone) == 1 })
	for _, text := range []string{"", "three"} { // an empty one is half written
		if err := os.WriteFile(dir+"/net-conf.json", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	expect("three")
}
