# serve.sh POSTGRES DATA SOCKETS: run a server until its owner says so on standard input, or is gone
# and with it the other end of the pipe.
exec 3<&0
"$1" -D "$2" -k "$3" -c listen_addresses= -c log_checkpoints=off &
server=$!
(read _ <&3; kill -INT $server) &
wait $server
kill $!
rm -rf "$3"
