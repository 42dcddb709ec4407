package kubernetes

import (
	"crypto/tls"
	"encoding/base64"
	"errors"
	"io/fs"
	"net"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
	"github.com/quorate/quorate/internal/userfile"
)

// server is the address of the API and its credentials.
type server struct {
	base      string
	tls       *tls.Config
	namespace string // empty = the credentials have no namespace

	token     string // at most one of token, tokenFile and basic is set
	tokenFile string
	basic     string // user:password
}

// authorization returns the value of the header Authorization, or "" if the requests need no such header.
func (s *server) authorization() (string, error) {
	switch {
	case s.tokenFile != "":
		data, err := userfile.Read(s.tokenFile)
		if err != nil {
			return "", &fault.Error{Code: fault.Denied, Op: "kubernetes.Token", Msg: "reading the token", Err: err}
		}
		token := strings.TrimSpace(string(data))
		if token == "" || strings.ContainsAny(token, "\r\n\x00") {
			return "", &fault.Error{Code: fault.Denied, Op: "kubernetes.Token", Msg: s.tokenFile +
				" does not hold one token"}
		}
		return "Bearer " + token, nil
	case s.token != "":
		return "Bearer " + s.token, nil
	case s.basic != "":
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(s.basic)), nil
	}
	return "", nil
}

// find selects the credentials. It uses the first of these that applies:
//
//   - the kubeconfig file in the settings of the component
//   - the service account, if the process runs in a pod
//   - the kubeconfig file in the variable KUBECONFIG
//   - ~/.kube/config
func find(o Options) (server, error) {
	if o.Kubeconfig != "" {
		return fromKubeconfig(o.Kubeconfig)
	}
	if host, ok := o.Env("KUBERNETES_SERVICE_HOST"); ok && host != "" {
		return fromPod(o, host)
	}
	if path, ok := o.Env("KUBECONFIG"); ok && path != "" {
		if strings.ContainsRune(path, filepath.ListSeparator) {
			return server{}, invalid("KUBECONFIG names several files", "name one in kubeconfigPath")
		}
		return fromKubeconfig(path)
	}
	home, ok := o.Env("HOME")
	if !ok || home == "" {
		return server{}, invalid("this is no pod of a cluster and no kubeconfig file is named", "set kubeconfigPath")
	}
	return fromKubeconfig(filepath.Join(home, ".kube", "config"))
}

func fromPod(o Options, host string) (server, error) {
	dir := o.ServiceAccountDir
	if dir == "" {
		dir = ServiceAccountDir
	}
	port, ok := o.Env("KUBERNETES_SERVICE_PORT")
	if !ok || port == "" {
		port = "443"
	}
	pool, err := rest.AuthorityFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return server{}, err
	}
	s := server{base: "https://" + net.JoinHostPort(host, port), tls: rest.TLS(pool),
		tokenFile: filepath.Join(dir, "token")}
	if _, err := s.authorization(); err != nil {
		return server{}, err
	}
	namespace, err := userfile.Read(filepath.Join(dir, "namespace"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return server{}, invalid("reading the namespace of the pod: "+err.Error(), "")
	}
	s.namespace = strings.TrimSpace(string(namespace))
	return s, nil
}

// kubeconfig is the supported part of a kubeconfig file.
type kubeconfig struct {
	Current  string `yaml:"current-context"`
	Contexts []struct {
		Name    string `yaml:"name"`
		Context struct {
			Cluster   string `yaml:"cluster"`
			User      string `yaml:"user"`
			Namespace string `yaml:"namespace"`
		} `yaml:"context"`
	} `yaml:"contexts"`
	Clusters []struct {
		Name    string  `yaml:"name"`
		Cluster cluster `yaml:"cluster"`
	} `yaml:"clusters"`
	Users []struct {
		Name string `yaml:"name"`
		User user   `yaml:"user"`
	} `yaml:"users"`
}

type cluster struct {
	Server     string `yaml:"server"`
	CA         string `yaml:"certificate-authority"`
	CAData     string `yaml:"certificate-authority-data"`
	SkipVerify bool   `yaml:"insecure-skip-tls-verify"`
	ServerName string `yaml:"tls-server-name"`
}

type user struct {
	Token     string    `yaml:"token"`
	TokenFile string    `yaml:"tokenFile"`
	Username  string    `yaml:"username"`
	Password  string    `yaml:"password"`
	Cert      string    `yaml:"client-certificate"`
	CertData  string    `yaml:"client-certificate-data"`
	Key       string    `yaml:"client-key"`
	KeyData   string    `yaml:"client-key-data"`
	Exec      yaml.Node `yaml:"exec"`
	Provider  yaml.Node `yaml:"auth-provider"`
}

func fromKubeconfig(path string) (server, error) {
	data, err := userfile.Read(path)
	if err != nil {
		return server{}, invalid("reading the kubeconfig file: "+err.Error(), "set kubeconfigPath to one that exists")
	}
	var k kubeconfig
	if yaml.Unmarshal(userfile.YAML(data), &k) != nil { // the error could quote a token
		return server{}, invalid(path+" is not a kubeconfig file", "")
	}
	return k.server(path)
}

// server returns the server and credentials of the current context. path is the path of the kubeconfig file.
func (k *kubeconfig) server(path string) (server, error) {
	for _, c := range k.Contexts {
		if c.Name != k.Current {
			continue
		}
		at, found := k.cluster(c.Context.Cluster)
		if !found {
			return server{}, invalid(path+": the current context names a cluster that the file does not have", "")
		}
		who, found := k.user(c.Context.User)
		if !found && c.Context.User != "" {
			return server{}, invalid(path+": the current context names a user that the file does not have", "")
		}
		return build(filepath.Dir(path), at, who, c.Context.Namespace)
	}
	return server{}, invalid(path+": the file has no current context", "choose one with kubectl config use-context")
}

func (k *kubeconfig) cluster(name string) (cluster, bool) {
	for _, c := range k.Clusters {
		if c.Name == name {
			return c.Cluster, true
		}
	}
	return cluster{}, false
}

func (k *kubeconfig) user(name string) (user, bool) {
	for _, u := range k.Users {
		if u.Name == name {
			return u.User, true
		}
	}
	return user{}, false
}

func build(dir string, c cluster, u user, namespace string) (server, error) {
	base, err := rest.Base("the server of the kubeconfig file", c.Server)
	if err != nil {
		return server{}, err
	}
	if !u.Exec.IsZero() || !u.Provider.IsZero() {
		return server{}, invalid("the user of the kubeconfig file gets its credentials from a program, which is "+
			"not supported",
			"use a service account's token: kubectl create token")
	}
	s := server{base: base, tls: rest.TLS(nil), namespace: namespace, token: u.Token}
	s.tls.ServerName, s.tls.InsecureSkipVerify = c.ServerName, c.SkipVerify
	if u.TokenFile != "" {
		s.token, s.tokenFile = "", absolute(dir, u.TokenFile)
	} else if u.Token == "" && u.Username != "" {
		s.basic = u.Username + ":" + u.Password
	}
	if rest.Exposed(base) && (s.token != "" || s.tokenFile != "" || s.basic != "") {
		return server{}, invalid("the server of the kubeconfig file is not https: credentials could be read in transit",
			"")
	}
	return s, s.certificates(dir, c, u)
}

// certificates reads the authorities that the server's certificate is checked against, and the client certificate, and
// stores both in s.tls. Relative paths start at the folder dir.
func (s *server) certificates(dir string, c cluster, u user) error {
	ca, err := material(dir, "certificate-authority", c.CA, c.CAData)
	if err != nil {
		return err
	}
	if ca != nil {
		if s.tls.RootCAs, err = rest.Authorities("certificate-authority of the kubeconfig file", ca); err != nil {
			return err
		}
	}
	cert, err := material(dir, "client-certificate", u.Cert, u.CertData)
	if err != nil {
		return err
	}
	key, err := material(dir, "client-key", u.Key, u.KeyData)
	if err != nil || cert == nil && key == nil {
		return err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return invalid("the client certificate and key of the kubeconfig file do not belong together, "+
			"or cannot be read", "")
	}
	s.tls.Certificates = []tls.Certificate{pair}
	return nil
}

// material returns a certificate or key of a kubeconfig file. If data is set, it is the certificate or key in base64.
// Otherwise, path is the file that contains it, relative to the folder dir. If neither data nor path is set, material
// returns nil. Error messages contain name, the name of the field.
func material(dir, name, path, data string) ([]byte, error) {
	if data != "" {
		out, err := base64.StdEncoding.DecodeString(data)
		if err != nil {
			return nil, invalid(name+"-data of the kubeconfig file is not base64", "")
		}
		return out, nil
	}
	if path == "" {
		return nil, nil
	}
	out, err := userfile.Read(absolute(dir, path))
	if err != nil {
		return nil, invalid("reading "+name+" of the kubeconfig file: "+err.Error(), "")
	}
	return out, nil
}

func absolute(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

func invalid(msg, hint string) error {
	return &fault.Error{Code: fault.Invalid, Op: "kubernetes.Open", Msg: msg, Hint: hint}
}
