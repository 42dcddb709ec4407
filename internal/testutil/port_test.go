package testutil

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"syscall"
	"testing"
)

func TestReservePort_GivesEachPortOnce(t *testing.T) {
	given := map[int]bool{}
	for range 200 {
		port := SparePort(t)
		if given[port] {
			t.Fatalf("port %d was given twice", port)
		}
		given[port] = true
	}
}

func TestReservePort_IsFreeAndReservedUntilRelease(t *testing.T) {
	port, release, err := ReservePort()
	Must(t, err)
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	Must(t, err)
	if isFree(port) {
		t.Error("a port with a listener counts as free")
	}
	Must(t, l.Close())
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has abstract sockets")
	}
	if _, err := reserve(port); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("the port can be reserved twice: %v", err)
	}
	release()
	again, err := reserve(port)
	Must(t, err)
	again()
}
