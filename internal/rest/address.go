package rest

import (
	"net/netip"
	"net/url"
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// Base checks the address of a service, http or https with nothing behind the path, and
// returns it without a slash at the end. The error is fault.Invalid; setting names it.
func Base(setting, address string) (base string, err error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", &fault.Error{Code: fault.Invalid, Op: "rest.Base", Msg: setting + " is not the address of a service", Hint: "write it as https://host:port"}
	}
	return strings.TrimRight(address, "/"), nil
}

// Exposed reports whether credentials sent to a base address could be read on the way:
// it is not https and leads to another machine.
func Exposed(base string) bool {
	u, err := url.Parse(base)
	if err != nil || u.Scheme == "https" {
		return false
	}
	if u.Hostname() == "localhost" {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return err != nil || !ip.IsLoopback()
}
