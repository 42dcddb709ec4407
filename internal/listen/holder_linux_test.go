package listen_test

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/listen"
)

// TestHolderProcess is the process that TestTCP_TakenPortErrorNamesHolder starts. It prints its port.
func TestHolderProcess(t *testing.T) {
	if os.Getenv("LISTEN_HOLDER") == "" {
		t.Skip("this is the process of another test")
	}
	fmt.Println(listen.Port(open(t, listen.Request{Hosts: []string{loopback}})[0]))
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // until the other test closes it
}

func TestTCP_TakenPortErrorNamesHolder(t *testing.T) {
	c := exec.Command(os.Args[0], "-test.run=TestHolderProcess", "--", "an", "application")
	c.Env = append(os.Environ(), "LISTEN_HOLDER=1")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = in.Close(), c.Wait() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	_, err = listen.TCP(t.Context(), listen.Request{Hosts: []string{loopback}, Port: port, Flag: "--peer-port"})
	want := fmt.Sprintf("(the port is held by pid %d, listen.test -test.run=TestHolderProcess, a Quorate node of this "+
		"user: stop it, or choose a port with --peer-port; 0 picks a free one)", c.Process.Pid)
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), want) {
		t.Errorf("error = %v\nwant %s", err, want)
	}
}

func TestInUse_NamesThisProcessAndSkipsOtherAddresses(t *testing.T) {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, text, _ := net.SplitHostPort(c.LocalAddr().String())
	for at, mine := range map[string]bool{
		"127.0.0.1:" + text: true, "0.0.0.0:" + text: true, "[::]:" + text: true, "127.0.0.9:" + text: false,
	} {
		hint := listen.InUse("udp", netip.MustParseAddrPort(at), "--gossip-port")
		if strings.Contains(hint, fmt.Sprintf("held by this process, pid %d:", os.Getpid())) != mine {
			t.Errorf("%s: %s", at, hint)
		}
		if !mine && !strings.Contains(hint, "ss -Hlnpu 'sport = :"+text+"'") {
			t.Errorf("%s: no advice in %s", at, hint)
		}
	}
}
