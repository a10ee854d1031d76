// sshd ADDRESS HOST-KEY AUTHORIZED-KEY: an SSH server that runs commands by `sh -c` for the one client that has the authorized key. The
// [Disruptive] specs stop and start the kubelet of a node through it.
package main

import (
	"bytes"
	"errors"
	"log"
	"net"
	"os"
	"os/exec"

	"golang.org/x/crypto/ssh"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: sshd ADDRESS HOST-KEY AUTHORIZED-KEY")
	}
	config, err := configuration(os.Args[2], os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	for {
		connection, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			if err := serve(connection, config); err != nil {
				log.Printf("%s: %v", connection.RemoteAddr(), err)
			}
		}()
	}
}

func configuration(hostKey, authorizedKey string) (*ssh.ServerConfig, error) {
	text, err := os.ReadFile(authorizedKey)
	if err != nil {
		return nil, err
	}
	authorized, _, _, _, err := ssh.ParseAuthorizedKey(text)
	if err != nil {
		return nil, err
	}
	if text, err = os.ReadFile(hostKey); err != nil {
		return nil, err
	}
	host, err := ssh.ParsePrivateKey(text)
	if err != nil {
		return nil, err
	}
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, offered ssh.PublicKey) (*ssh.Permissions, error) {
		if !bytes.Equal(offered.Marshal(), authorized.Marshal()) {
			return nil, errors.New("another key is authorized")
		}
		return &ssh.Permissions{}, nil
	}}
	config.AddHostKey(host)
	return config, nil
}

func serve(connection net.Conn, config *ssh.ServerConfig) error {
	defer connection.Close()
	_, channels, requests, err := ssh.NewServerConn(connection, config)
	if err != nil {
		return err
	}
	go ssh.DiscardRequests(requests)
	for offered := range channels {
		if offered.ChannelType() != "session" {
			if err := offered.Reject(ssh.UnknownChannelType, "sessions only"); err != nil {
				return err
			}
			continue
		}
		channel, requests, err := offered.Accept()
		if err != nil {
			return err
		}
		go session(channel, requests)
	}
	return nil
}

// One command; its end is the session's.
func session(channel ssh.Channel, requests <-chan *ssh.Request) {
	defer channel.Close()
	for request := range requests {
		var payload struct{ Command string }
		if request.Type != "exec" || ssh.Unmarshal(request.Payload, &payload) != nil {
			request.Reply(false, nil)
			continue
		}
		request.Reply(true, nil)
		status := run(payload.Command, channel)
		log.Printf("%s: exit status %d", payload.Command, status)
		channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{status}))
		return
	}
}

func run(text string, channel ssh.Channel) uint32 {
	command := exec.Command("sh", "-c", text)
	command.Stdout, command.Stderr = channel, channel.Stderr()
	var exited *exec.ExitError
	switch err := command.Run(); {
	case err == nil:
		return 0
	case errors.As(err, &exited) && exited.ExitCode() >= 0:
		return uint32(exited.ExitCode())
	default:
		return 255
	}
}
