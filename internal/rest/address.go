package rest

import (
	"net/netip"
	"net/url"
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// Base validates the address of a service, and removes trailing slashes. The address needs a host and the scheme http
// or https, and must not have a user, query or fragment. Otherwise Base returns fault.Invalid. The message of the error
// begins with the name of the setting.
func Base(setting, address string) (base string, err error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.RawQuery != "" ||
		u.Fragment != "" {
		return "", &fault.Error{Code: fault.Invalid, Op: "rest.Base", Msg: setting +
			" is not the address of a service", Hint: "write it as https://host:port"}
	}
	return strings.TrimRight(address, "/"), nil
}

// Exposed reports whether other hosts on the network could read the credentials that are sent to an address. The result
// is true if the scheme is not https and the host is not a loopback address.
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
