// Program start starts eight processes of itself at a time. Each of them runs until its
// standard input ends, which is when the first process ends.
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
)

func main() {
	if len(os.Args) > 1 {
		fmt.Println("runs")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	var wg sync.WaitGroup
	for range 8 {
		cmd := exec.Command(os.Args[0], "child")
		_, err := cmd.StdinPipe()
		out, err2 := cmd.StdoutPipe()
		if err != nil || err2 != nil {
			fmt.Println(err, err2)
			os.Exit(1)
		}
		wg.Go(func() {
			if err := cmd.Start(); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			if _, err := io.ReadFull(out, make([]byte, len("runs"))); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
		})
	}
	wg.Wait()
	fmt.Println("started")
	_, _ = io.Copy(io.Discard, os.Stdin)
}
